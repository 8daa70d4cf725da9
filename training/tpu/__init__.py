"""Compilation of training steps for TPUs, without one."""
