#!/usr/bin/env bash
# tests/gpu/answer.sh MOONSHIFT MODEL TOKENS FLAGS...: the program answers on the GPU in invariant mode as on the CPU,
# letter by letter, which computes with --cpu-precision high. FLAGS: ranks and their layout.
set -uo pipefail
moonshift=$1 model=$2 tokens=$3
shift 3
ask() {
    "$moonshift" run "$model" "$@" --temperature 0 -n "$tokens" "Name three rivers and say where they end."
}
cpu=$(ask --device cpu --cpu-precision high) && gpu=$(ask --device cuda --invariant "$@") || exit 1
printf 'CPU: %s\nGPU: %s\n' "$cpu" "$gpu"
[ -n "$cpu" ] && [ "$cpu" = "$gpu" ]
