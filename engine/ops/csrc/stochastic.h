// States kept in bf16, rounded up or down at random so that they are right on average: a second moment moves
// by a thousandth a step, a quarter of bf16's spacing, and would stand still if rounded to nearest.
// The randomness is a hash of step, stream (which tensor or bucket) and index, so that it does not depend on
// how many ranks, blocks or threads share the elements. stochastic.py has the same.
#pragma once
#include "arithmetic.h"

// A permutation of 32 bits in which every bit of the input tips every bit of the output (C. Wellons'
// lowbias32).
template <class U>
FORMULA U mixed(U x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  x ^= x >> 16;
  return x;
}

FORMULA uint32_t noise_key(uint32_t step, uint32_t stream) { return mixed(mixed(step) ^ stream); }

// 32 random bits for element `index` are mixed(index * kGolden + key): the lower half rounds the first state,
// the upper half the second.
constexpr uint32_t kGolden = 0x9E3779B9u;

// `Rule` with both states in bf16.
template <class Rule>
struct InBFloat16 : Rule {
  struct Scalars : Rule::Scalars {
    uint32_t step;  // its number
  };

#if defined(__CUDACC__)
  static FORMULA Scalars scalars(const typename Rule::Hyper& h, double lr, double t) {
    return {Rule::scalars(h, lr, t), uint32_t(t)};
  }
#endif
};

template <class Rule>
constexpr bool has_low_states = false;
template <class Rule>
constexpr bool has_low_states<InBFloat16<Rule>> = true;
template <class Rule>
constexpr int kStateBytes = has_low_states<Rule> ? 2 : 4;
