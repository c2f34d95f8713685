// The library's C interface, and the choice of an instruction set when it is loaded.
#include <stdlib.h>
#include <string.h>

#include "cpu_call.h"

extern const Kernels kernels_baseline, kernels_avx2, kernels_avx512, kernels_avx512bf16;

namespace {

struct InstructionSet {
  const char* name;
  const Kernels* kernels;
  bool supported;
};

InstructionSet instruction_set(const char* name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  const bool best = strcmp(name, "best") == 0;
  if (strcmp(name, "avx512bf16") == 0 || (best && bf16)) return {"avx512bf16", &kernels_avx512bf16, bf16};
  if (strcmp(name, "avx512") == 0 || (best && avx512)) return {"avx512", &kernels_avx512, avx512};
  if (strcmp(name, "avx2") == 0 || (best && avx2)) return {"avx2", &kernels_avx2, avx2};
#endif
  return {"baseline", &kernels_baseline, true};
}

InstructionSet chosen = instruction_set("best");

// Numbers the blocks through all entries, and gives threads no less than a block each.
Call prepared(const Call& call) {
  Call whole = call;
  whole.num_blocks = 0;
  for (int64_t i = 0; i < call.num_entries; i++) {
    call.entries[i].first_block = whole.num_blocks;
    whole.num_blocks += (call.entries[i].numel + kBlockNumel - 1) / kBlockNumel;
  }
  if (whole.num_threads > whole.num_blocks) whole.num_threads = int32_t(whole.num_blocks);
  return whole;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const char* dslaunch_instruction_set() { return chosen.name; }

// For tests: "baseline", "avx2", "avx512", "avx512bf16" or "best". Returns 0 where the processor has no such
// instructions.
EXPORT int dslaunch_use(const char* name) {
  const InstructionSet wanted = instruction_set(name);
  if (!wanted.supported) return 0;
  chosen = wanted;
  return 1;
}

// One step of all entries. Returns 0, or -1 where memory for partial sums is lacking.
EXPORT int dslaunch_adamw(const Call* call) { return chosen.kernels->adamw(prepared(*call)), 0; }
EXPORT int dslaunch_adamw_bf16(const Call* call) { return chosen.kernels->adamw_bf16(prepared(*call)), 0; }
EXPORT int dslaunch_lion(const Call* call) { return chosen.kernels->lion(prepared(*call)), 0; }
EXPORT int dslaunch_adagrad(const Call* call) { return chosen.kernels->adagrad(prepared(*call)), 0; }
EXPORT int dslaunch_sgd(const Call* call) { return chosen.kernels->sgd(prepared(*call)), 0; }
EXPORT int dslaunch_sgd_momentum(const Call* call) {
  return chosen.kernels->sgd_momentum(prepared(*call)), 0;
}

EXPORT int dslaunch_lamb(const Call* call) {
  Call whole = prepared(*call);
  whole.partials = static_cast<double*>(calloc(2 * whole.num_blocks + 1, sizeof(double)));
  if (!whole.partials) return -1;
  chosen.kernels->lamb(whole);
  free(whole.partials);
  return 0;
}

// Sum of squares of the gradients of all entries, to *sum.
EXPORT int dslaunch_sum_of_squares(const Call* call, double* sum) {
  Call whole = prepared(*call);
  whole.partials = static_cast<double*>(calloc(2 * whole.num_blocks + 1, sizeof(double)));
  if (!whole.partials) return -1;
  chosen.kernels->sum_of_squares(whole);
  *sum = 0;
  for (int64_t block = 0; block < whole.num_blocks; block++) *sum += whole.partials[2 * block];
  free(whole.partials);
  return 0;
}
