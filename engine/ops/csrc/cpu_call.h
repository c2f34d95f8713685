// One call of a CPU kernel, and the kernels that every instruction set provides.
#pragma once
#include <stdint.h>

#include "entry.h"

constexpr int64_t kBlockNumel = 4096;  // what is never divided among threads

struct Call {
  Entry* entries;
  const void* scalars;  // the optimizer's Scalars
  int64_t num_entries;
  int64_t num_blocks;  // over all entries
  double* partials;    // two a block, for kernels that sum; else null
  float grad_scale;
  DType grad_dtype, out_dtype;
  int32_t num_threads;
};

struct Kernels {
  void (*adamw)(const Call&);
  void (*adamw_bf16)(const Call&);  // moments in bf16
  void (*lion)(const Call&);
  void (*adagrad)(const Call&);
  void (*sgd)(const Call&);
  void (*sgd_momentum)(const Call&);
  void (*lamb)(const Call&);
  void (*sum_of_squares)(const Call&);  // of the gradients, into partials[2 * block]
};
