// Lion. Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), algorithm 2.
#pragma once
#include "arithmetic.h"

struct Lion {
  static constexpr int num_states = 1;  // m

  struct Scalars {
    float lr, one_minus_beta1, one_minus_beta2;
    float decay;  // lr * weight_decay
  };

#if defined(__CUDACC__)
  struct Hyper {  // LionStep of lion.py
    double lr, beta1, beta2, weight_decay;
  };

  static FORMULA Scalars scalars(const Hyper& h, double lr, double) {
    return {float(lr), float(1 - h.beta1), float(1 - h.beta2), float(lr * h.weight_decay)};
  }
#endif

  template <class F>
  static FORMULA void step(F& theta, F& m, F&, F g, const Scalars& s) {
    F update = sign(m + s.one_minus_beta1 * (g - m));
    theta = theta - (s.decay * theta + s.lr * update);
    m = m + s.one_minus_beta2 * (g - m);
  }
};
