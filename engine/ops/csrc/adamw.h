// Adam and AdamW. Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015), algorithm 1;
// Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), algorithm 2.
#pragma once
#include "entry.h"

struct AdamW {
  static constexpr int num_states = 2;  // m, v

  struct Scalars {
    float one_minus_beta1, one_minus_beta2, eps;
    float step_size;          // lr / (1 - beta1^t)
    float rsqrt_correction2;  // 1 / sqrt(1 - beta2^t)
    float decay;              // lr * weight_decay where it is decoupled, else 0
    float l2;                 // weight_decay where it is not decoupled, else 0
  };

  // m and v as moves towards g and g^2: 1 - beta is exact to fp32 where beta would lose half its digits.
  template <class F>
  static FORMULA void step(F& theta, F& m, F& v, F g, const Scalars& s) {
    g = g + s.l2 * theta;
    m = m + s.one_minus_beta1 * (g - m);
    v = v + s.one_minus_beta2 * (g * g - v);
    theta = theta - (s.decay * theta + s.step_size * m / (square_root(v) * s.rsqrt_correction2 + s.eps));
  }
};
