// AdamW's streams without AdamW: four read, three of them written in place, hardly any arithmetic.
#include <omp.h>
#include <stddef.h>

namespace {

struct Streams {
  float *theta, *grad, *m, *v;
};

// Values stay the same: what is added is far below their last bit.
inline void touch(float* __restrict theta, const float* __restrict grad, float* __restrict m,
                  float* __restrict v, size_t begin, size_t end) {
  for (size_t i = begin; i < end; i++) {
    const float tiny = grad[i] * 1e-30f;
    theta[i] += tiny;
    m[i] += tiny;
    v[i] += tiny;
  }
}

template <bool kPrefetch>
void move(const Streams& s, size_t n, int threads) {
  constexpr size_t kChunk = 64, kAhead = 1024;
  const float* const streams[] = {s.theta, s.grad, s.m, s.v};
#pragma omp parallel num_threads(threads)
  {
    const size_t num = omp_get_num_threads(), rank = omp_get_thread_num(), chunks = n / kChunk;
    size_t i = chunks * rank / num * kChunk;
    const size_t end = rank + 1 == num ? n : chunks * (rank + 1) / num * kChunk;
    for (; kPrefetch && i + kChunk <= end; i += kChunk) {
      for (size_t line = 0; line < kChunk; line += 16)
        for (const float* stream : streams) __builtin_prefetch(stream + i + kAhead + line);
      touch(s.theta, s.grad, s.m, s.v, i, i + kChunk);
    }
    touch(s.theta, s.grad, s.m, s.v, i, end);
  }
}

}  // namespace

extern "C" void traffic(float* theta, float* grad, float* m, float* v, size_t n, int threads, int prefetch) {
  const Streams streams = {theta, grad, m, v};
  prefetch ? move<true>(streams, n, threads) : move<false>(streams, n, threads);
}
