// Stochastic gradient descent, plain and with momentum as torch.optim.SGD defines it (Sutskever et al. 2013).
#pragma once
#include "arithmetic.h"

struct Sgd {
  static constexpr int num_states = 0;

  struct Scalars {
    float lr, l2;
  };

#if defined(__CUDACC__)
  struct Hyper {  // SgdStep of sgd.py
    double lr, weight_decay;
  };

  static FORMULA Scalars scalars(const Hyper& h, double lr, double) {
    return {float(lr), float(h.weight_decay)};
  }
#endif

  template <class F>
  static FORMULA void step(F& theta, F&, F&, F g, const Scalars& s) {
    theta = theta - s.lr * (g + s.l2 * theta);
  }
};

struct SgdMomentum {
  static constexpr int num_states = 1;  // b, the momentum buffer

  struct Scalars {
    float lr, l2, momentum;
    float one_minus_dampening;             // 1 in the first step, as the buffer starts as the gradient
    float gradient_weight, buffer_weight;  // of the direction: (0, 1), Nesterov's (1, momentum)
  };

#if defined(__CUDACC__)
  struct Hyper {  // SgdMomentumStep of sgd.py
    double lr, weight_decay, momentum, dampening;
    int32_t nesterov, first;
  };

  static FORMULA Scalars scalars(const Hyper& h, double lr, double) {
    return {float(lr),
            float(h.weight_decay),
            float(h.momentum),
            h.first ? 1.0f : float(1 - h.dampening),
            h.nesterov ? 1.0f : 0.0f,
            h.nesterov ? float(h.momentum) : 1.0f};
  }
#endif

  template <class F>
  static FORMULA void step(F& theta, F& b, F&, F g, const Scalars& s) {
    g = g + s.l2 * theta;
    b = s.momentum * b + s.one_minus_dampening * g;
    theta = theta - s.lr * (s.gradient_weight * g + s.buffer_weight * b);
  }
};
