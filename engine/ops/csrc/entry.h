// What a kernel is told: the plain C values that Python passes by ctypes (kernel_arguments.py has the same
// layouts).
#pragma once

#if defined(__CUDACC_RTC__)
typedef long long int64_t;
typedef int int32_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
#else
#include <stdint.h>
#endif

#if defined(__CUDACC__)
#define FORMULA __device__ __forceinline__
#else
#define FORMULA inline __attribute__((always_inline))
#endif

// kSplitBFloat16, of parameters: the master is split into the bf16 parameter and 16 bits beyond it.
enum DType : int32_t { kNone = 0, kFloat32 = 1, kBFloat16 = 2, kFloat16 = 3, kSplitBFloat16 = 4 };

// One tensor, or one flat shard. All pointers are to `numel` elements.
struct Entry {
  float* master;     // read and written; where it is split: int16_t*, what it has beyond `out`
  float* state1;     // read and written; null where the optimizer has no state; uint16_t* where they are bf16
  float* state2;     // read and written; null where the optimizer has one state at most; likewise
  const void* grad;  // read
  void* out;         // the rounded master is written here (and read, where it is split); null: nowhere
  int64_t numel;
  int64_t first_block;  // how many blocks the entries before this one have
  uint32_t start;       // of stochastic rounding (stochastic.h): the first element's index,
  uint32_t stream;      // and what it is an index into
};
