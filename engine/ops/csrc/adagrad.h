// Adagrad. Duchi, Hazan and Singer, "Adaptive Subgradient Methods" (2011), with torch's eps and lr_decay.
#pragma once
#include "arithmetic.h"

struct Adagrad {
  static constexpr int num_states = 1;  // the sum of squares

  struct Scalars {
    float step_size;  // lr / (1 + (t - 1) * lr_decay)
    float l2, eps;
  };

  template <class F>
  static FORMULA void step(F& theta, F& sum, F&, F g, const Scalars& s) {
    g = g + s.l2 * theta;
    sum = sum + g * g;
    theta = theta - s.step_size * g / (square_root(sum) + s.eps);
  }
};
