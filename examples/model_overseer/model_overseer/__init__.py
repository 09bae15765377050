"""An overseer that asks a model."""
