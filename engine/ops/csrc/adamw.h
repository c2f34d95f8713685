// Adam and AdamW. Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015), algorithm 1;
// Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), algorithm 2.
#pragma once
#include "arithmetic.h"

struct AdamW {
  static constexpr int num_states = 2;  // m, v

  struct Scalars {
    float one_minus_beta1, one_minus_beta2, eps;
    float step_size;          // lr / (1 - beta1^t)
    float rsqrt_correction2;  // 1 / sqrt(1 - beta2^t)
    float decay;              // lr * weight_decay where it is decoupled, else 0
    float l2;                 // weight_decay where it is not decoupled, else 0
  };

#if defined(__CUDACC__)
  // AdamWStep of adamw.py, where the step's number or its learning rate is known on the GPU alone.
  struct Hyper {
    double lr, beta1, beta2, eps, weight_decay;
    int32_t decoupled, bias_correction;
  };

  static FORMULA Scalars scalars(const Hyper& h, double lr, double t) {
    const double correction1 = h.bias_correction ? 1 - pow(h.beta1, t) : 1;
    const double correction2 = h.bias_correction ? 1 - pow(h.beta2, t) : 1;
    return {float(1 - h.beta1),
            float(1 - h.beta2),
            float(h.eps),
            float(lr / correction1),
            float(1 / sqrt(correction2)),
            h.decoupled ? float(lr * h.weight_decay) : 0.0f,
            h.decoupled ? 0.0f : float(h.weight_decay)};
  }
#endif

  // m and v as moves towards g and g^2: 1 - beta is exact to fp32 where beta would lose half its digits.
  template <class F>
  static FORMULA void step(F& theta, F& m, F& v, F g, const Scalars& s) {
    g = g + s.l2 * theta;
    m = m + s.one_minus_beta1 * (g - m);
    v = v + s.one_minus_beta2 * (g * g - v);
    theta = theta - (s.decay * theta + s.step_size * m / (square_root(v) * s.rsqrt_correction2 + s.eps));
  }
};
