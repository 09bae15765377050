"""An advantage estimator, a policy loss and a schedule of turn limits, registered by entry points."""
