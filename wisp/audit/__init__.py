"""The audit log: what the policy decided and what each command did."""
