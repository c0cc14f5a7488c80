from __future__ import annotations

import os
import select
import signal
import threading

from wisp.sandbox.stop import Stop


def is_readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def test_each_request_wakes_the_command_that_is_attached() -> None:
    stop = Stop()
    with stop.attached() as attached:
        assert not is_readable(attached.descriptor)
        stop.request()
        assert is_readable(attached.descriptor)
        attached.clear()
        assert not is_readable(attached.descriptor)
        stop.kill()
        assert is_readable(attached.descriptor)
    assert stop.requests == 3


def test_a_request_before_the_start_or_after_the_end_is_counted_and_wakes_nobody() -> None:
    stop = Stop()
    stop.request()
    with stop.attached() as attached:
        assert not is_readable(attached.descriptor)
    stop.request()
    assert stop.requests == 2


def test_forwarded_signals_are_taken_once_and_in_order() -> None:
    stop = Stop()
    stop.forward(signal.SIGINT)
    stop.forward(signal.SIGHUP)
    assert stop.take_forwards() == [signal.SIGINT, signal.SIGHUP]
    assert stop.take_forwards() == []
    assert stop.requests == 0


def test_every_command_that_is_attached_is_woken() -> None:
    stop = Stop()
    with stop.attached() as one, stop.attached() as other:
        stop.request()
        assert is_readable(one.descriptor)
        assert is_readable(other.descriptor)


def test_a_thousand_requests_do_not_block_and_none_is_lost() -> None:
    stop = Stop()

    def ask() -> None:
        for _ in range(5_000):
            stop.request()

    with stop.attached():
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert stop.requests == 20_000


def test_no_request_is_written_into_a_descriptor_that_took_over_the_number() -> None:
    """A stop comes from another thread while commands end: the number of their pipe is soon somebody else's."""
    stop, done = Stop(), threading.Event()

    def ask() -> None:
        while not done.is_set():
            stop.forward(signal.SIGWINCH)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(300):
            with stop.attached():
                pass
            reader, writer = os.pipe()  # the numbers that were just given back
            try:
                assert not is_readable(reader)
            finally:
                os.close(reader)
                os.close(writer)
    finally:
        done.set()
        asking.join()


def test_a_signal_handler_may_ask_while_its_own_thread_is_asking() -> None:
    stop = Stop()
    previous = signal.signal(signal.SIGALRM, lambda *_: stop.request())
    try:
        with stop.attached():
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
            asked = 0
            while stop.requests - asked < 20:
                stop.request()
                asked += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert stop.requests >= asked + 20


def test_a_signal_ends_the_wait_of_a_handle_that_is_asked_by_signals() -> None:
    """A handler runs only when the wait is over: without it a signal in the moment before would wait for output."""
    stop = Stop(by_signals=True)
    previous = signal.signal(signal.SIGUSR1, lambda *_: None)
    before = signal.set_wakeup_fd(-1)
    try:
        with stop.attached() as attached:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert select.select([attached.descriptor], [], [], 10)[0]
        assert signal.set_wakeup_fd(-1) == -1
        with Stop().attached() as attached:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not is_readable(attached.descriptor)
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGUSR1, previous)
