#!/usr/bin/env bash
# Runs a test and says at its end what processor time it and all it started took; tests/rings/costs.py reads it. The exit code is the test's.
TIMEFORMAT='processor seconds: %U user, %S system'
time "$@"
