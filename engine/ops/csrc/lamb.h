// LAMB. You et al., "Large Batch Optimization for Deep Learning" (2020), algorithm 2 with phi(x) = x.
// Two passes a tensor: the first moves m and v and sums |theta|^2 and |r|^2; the second recomputes r and
// applies it.
#pragma once
#include "arithmetic.h"

struct Lamb {
  static constexpr int num_states = 2;  // m, v

  struct Scalars {
    float one_minus_beta1, one_minus_beta2, eps;
    float lr;
    float inv_correction1;    // 1 / (1 - beta1^t)
    float rsqrt_correction2;  // 1 / sqrt(1 - beta2^t)
    float weight_decay;
    float max_trust;  // the largest trust ratio; infinity: not bounded
  };

#if defined(__CUDACC__)
  struct Hyper {  // LambStep of lamb.py
    double lr, beta1, beta2, eps, weight_decay, max_trust;
  };

  static FORMULA Scalars scalars(const Hyper& h, double lr, double t) {
    return {float(1 - h.beta1),
            float(1 - h.beta2),
            float(h.eps),
            float(lr),
            float(1 / (1 - pow(h.beta1, t))),
            float(1 / sqrt(1 - pow(h.beta2, t))),
            float(h.weight_decay),
            float(h.max_trust)};
  }
#endif

  template <class F>
  static FORMULA F direction(F theta, F m, F v, const Scalars& s) {
    return s.inv_correction1 * m / (square_root(v) * s.rsqrt_correction2 + s.eps) + s.weight_decay * theta;
  }

  template <class F>
  static FORMULA void moments(F& m, F& v, F g, const Scalars& s) {
    m = m + s.one_minus_beta1 * (g - m);
    v = v + s.one_minus_beta2 * (g * g - v);
  }

  // A tensor without a norm, or without an update, takes the plain step.
  static FORMULA float trust(double theta_squares, double r_squares, const Scalars& s) {
    if (!(theta_squares > 0) || !(r_squares > 0)) return s.lr;
    float ratio = float(square_root(theta_squares) / square_root(r_squares));
    return s.lr * (ratio < s.max_trust ? ratio : s.max_trust);
  }
};
