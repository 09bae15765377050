"""Megatron on a CPU: verl's engine on gloo, with stand-ins for CUDA names and Transformer Engine's layers."""
