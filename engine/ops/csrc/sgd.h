// Stochastic gradient descent, plain and with momentum as torch.optim.SGD defines it (Sutskever et al. 2013).
#pragma once
#include "arithmetic.h"

struct Sgd {
  static constexpr int num_states = 0;

  struct Scalars {
    float lr, l2;
  };

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

  template <class F>
  static FORMULA void step(F& theta, F& b, F&, F g, const Scalars& s) {
    g = g + s.l2 * theta;
    b = s.momentum * b + s.one_minus_dampening * g;
    theta = theta - s.lr * (s.gradient_weight * g + s.buffer_weight * b);
  }
};
