// Lion. Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), algorithm 2.
#pragma once
#include "arithmetic.h"

struct Lion {
  static constexpr int num_states = 1;  // m

  struct Scalars {
    float lr, one_minus_beta1, one_minus_beta2;
    float decay;  // lr * weight_decay
  };

  template <class F>
  static FORMULA void step(F& theta, F& m, F&, F g, const Scalars& s) {
    F update = sign(m + s.one_minus_beta1 * (g - m));
    theta = theta - (s.decay * theta + s.lr * update);
    m = m + s.one_minus_beta2 * (g - m);
  }
};
