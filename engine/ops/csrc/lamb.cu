// Three launches: moments and partial sums; the trust ratio of each tensor; the update.
#include "cuda_step.h"
#include "lamb.h"

template <class Grad>
FORMULA void lamb_moments(const Launch& launch, const Lamb::Scalars& host, const Lamb::Scalars* device) {
  if (is_skipped(launch)) return;
  const Lamb::Scalars s = device ? *device : host;
  const Place place = place_of<Grad>(launch);
  const Entry& e = place.entry;
  const Four g = load_grad<Grad>(place, scale_of(launch));
  const Four theta = load_floats(e.master, place);
  Four m = load_floats(e.state1, place), v = load_floats(e.state2, place);
  double theta_squares = 0, r_squares = 0;
  for (int i = 0; i < kPerThread; i++) {
    Lamb::moments(m.x[i], v.x[i], g.x[i], s);
    if (i < place.num) {  // without a gradient and a parameter, r is 0 / eps, or 0 / 0
      const float r = Lamb::direction(theta.x[i], m.x[i], v.x[i], s);
      theta_squares += double(theta.x[i]) * double(theta.x[i]);
      r_squares += double(r) * double(r);
    }
  }
  store_floats(e.state1, place, m);
  store_floats(e.state2, place, v);
  theta_squares = block_sum(theta_squares);
  r_squares = block_sum(r_squares);
  if (threadIdx.x == 0) {
    launch.partials[2 * int64_t(blockIdx.x)] = theta_squares;
    launch.partials[2 * int64_t(blockIdx.x) + 1] = r_squares;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    lamb_moments_1(const Launch l, const Lamb::Scalars host, const Lamb::Scalars* device) {
  lamb_moments<Float32>(l, host, device);
}
extern "C" __global__ void __launch_bounds__(kThreads)
    lamb_moments_2(const Launch l, const Lamb::Scalars host, const Lamb::Scalars* device) {
  lamb_moments<BFloat16>(l, host, device);
}
extern "C" __global__ void __launch_bounds__(kThreads)
    lamb_moments_3(const Launch l, const Lamb::Scalars host, const Lamb::Scalars* device) {
  lamb_moments<Float16>(l, host, device);
}

// One block a tensor.
extern "C" __global__ void __launch_bounds__(kThreads)
    lamb_trust(const Launch launch, const Lamb::Scalars host, const Lamb::Scalars* device,
               float* step_sizes) {
  if (is_skipped(launch)) return;  // nobody has computed the sums
  const Lamb::Scalars s = device ? *device : host;
  const Entry e = launch.table ? launch.table[blockIdx.x] : launch.flat;
  const int64_t end = e.first_block + (e.numel + kBlockNumel - 1) / kBlockNumel;
  double theta_squares = 0, r_squares = 0;
  for (int64_t block = e.first_block + threadIdx.x; block < end; block += kThreads) {
    theta_squares += launch.partials[2 * block];
    r_squares += launch.partials[2 * block + 1];
  }
  theta_squares = block_sum(theta_squares);
  r_squares = block_sum(r_squares);
  if (threadIdx.x == 0) step_sizes[blockIdx.x] = Lamb::trust(theta_squares, r_squares, s);
}

template <class Out>
FORMULA void lamb_update(const Launch& launch, const Lamb::Scalars& host, const Lamb::Scalars* device,
                         const float* step_sizes) {
  if (is_skipped(launch)) return;
  const Place place = place_of<Float32>(launch);
  if (place.num == 0) return;
  const Entry& e = place.entry;
  const float step_size = step_sizes[launch.table ? launch.tensor_of_block[blockIdx.x] : 0];
  const Lamb::Scalars s = device ? *device : host;
  Four theta = load_floats(e.master, place);
  const Four m = load_floats(e.state1, place), v = load_floats(e.state2, place);
  for (int i = 0; i < kPerThread; i++)
    theta.x[i] -= step_size * Lamb::direction(theta.x[i], m.x[i], v.x[i], s);
  store_master<Out>(place, theta);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    lamb_update_0(const Launch l, const Lamb::Scalars host, const Lamb::Scalars* device,
                  const float* step_sizes) {
  lamb_update<None>(l, host, device, step_sizes);
}
extern "C" __global__ void __launch_bounds__(kThreads)
    lamb_update_2(const Launch l, const Lamb::Scalars host, const Lamb::Scalars* device,
                  const float* step_sizes) {
  lamb_update<BFloat16>(l, host, device, step_sizes);
}
extern "C" __global__ void __launch_bounds__(kThreads)
    lamb_update_3(const Launch l, const Lamb::Scalars host, const Lamb::Scalars* device,
                  const float* step_sizes) {
  lamb_update<Float16>(l, host, device, step_sizes);
}

PREPARE_KERNEL(lamb, Lamb)
