// Adagrad. Duchi, Hazan and Singer, "Adaptive Subgradient Methods" (2011), with torch's eps and lr_decay.
#pragma once
#include "arithmetic.h"

struct Adagrad {
  static constexpr int num_states = 1;  // the sum of squares

  struct Scalars {
    float step_size;  // lr / (1 + (t - 1) * lr_decay)
    float l2, eps;
  };

#if defined(__CUDACC__)
  struct Hyper {  // AdagradStep of adagrad.py
    double lr, lr_decay, eps, weight_decay;
  };

  static FORMULA Scalars scalars(const Hyper& h, double lr, double t) {
    return {float(lr / (1 + (t - 1) * h.lr_decay)), float(h.weight_decay), float(h.eps)};
  }
#endif

  template <class F>
  static FORMULA void step(F& theta, F& sum, F&, F g, const Scalars& s) {
    g = g + s.l2 * theta;
    sum = sum + g * g;
    theta = theta - s.step_size * g / (square_root(sum) + s.eps);
  }
};
