// zlib's CRC-32 by carry-less multiplication: V. Gopal et al., "Fast CRC Computation for Generic Polynomials
// Using PCLMULQDQ Instruction" (Intel, 2009). Bits are reflected: the lowest one is the highest power of x.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr uint32_t kPolynomial = 0xEDB88320;

constexpr uint32_t times_x(uint32_t value) { return (value >> 1) ^ (value & 1 ? kPolynomial : 0); }

// The register after `size` more bytes, bit by bit.
uint32_t plain(uint32_t crc, const uint8_t* data, size_t size) {
  for (size_t i = 0; i < size; i++) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; bit++) crc = times_x(crc);
  }
  return crc;
}

#if defined(__x86_64__)
// x^n modulo the polynomial; one bit up, as a product of reflected numbers is one bit short.
constexpr uint64_t power_of_x(int n) {
  uint32_t value = 0x80000000;
  for (int i = 0; i < n; i++) value = times_x(value);
  return uint64_t(value) << 1;
}

// What 16 bytes are multiplied with to stand for the same `bits` later: their first eight, their last eight.
struct Factors {
  uint64_t first, last;
};
constexpr Factors later(int bits) { return {power_of_x(bits + 32), power_of_x(bits - 32)}; }
constexpr Factors kBy128 = later(128), kBy512 = later(512), kBy2048 = later(2048);

#define NARROW __attribute__((target("pclmul,sse4.1")))

NARROW inline __m128i load(const uint8_t* data) { return _mm_loadu_si128((const __m128i*)data); }

NARROW inline __m128i vector(Factors by) { return _mm_set_epi64x(int64_t(by.last), int64_t(by.first)); }

NARROW inline __m128i fold(__m128i value, __m128i by, __m128i onto) {
  const __m128i first = _mm_clmulepi64_si128(value, by, 0x00), last = _mm_clmulepi64_si128(value, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(first, last), onto);
}

// Folds the whole 64 bytes of `data` onto the 64 before them, `lanes`.
NARROW void fold_narrow(__m128i lanes[4], const uint8_t* data, size_t size) {
  const __m128i by = vector(kBy512);
  for (size_t at = 0; at + 64 <= size; at += 64) {
    for (int i = 0; i < 4; i++) lanes[i] = fold(lanes[i], by, load(data + at + 16 * i));
  }
}

// The register after `size` more bytes that follow `lanes`, less than 64.
NARROW uint32_t finish(const __m128i lanes[4], const uint8_t* data, size_t size) {
  __m128i all = lanes[0];
  for (int i = 1; i < 4; i++) all = fold(all, vector(kBy128), lanes[i]);
  uint8_t rest[16];
  memcpy(rest, &all, sizeof(rest));
  return plain(plain(0, rest, sizeof(rest)), data, size);
}

#define WIDE __attribute__((target("avx512f,vpclmulqdq,pclmul")))

WIDE inline __m512i fold(__m512i value, __m512i by, __m512i onto) {
  const __m512i first = _mm512_clmulepi64_epi128(value, by, 0x00);
  const __m512i last = _mm512_clmulepi64_epi128(value, by, 0x11);
  return _mm512_ternarylogic_epi64(first, last, onto, 0x96);  // xor of all three
}

WIDE inline __m512i everywhere(Factors by) {
  return _mm512_broadcast_i32x4(_mm_set_epi64x(int64_t(by.last), int64_t(by.first)));
}

// What the first `size` bytes, a multiple of 256, come to in `lanes`.
WIDE void fold_wide(__m128i lanes[4], uint32_t crc, const uint8_t* data, size_t size) {
  __m512i wide[4];
  for (int i = 0; i < 4; i++) wide[i] = _mm512_loadu_si512(data + 64 * i);
  wide[0] = _mm512_xor_si512(wide[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(int(crc))));
  const __m512i by = everywhere(kBy2048);
  for (size_t at = 256; at < size; at += 256) {
    for (int i = 0; i < 4; i++) wide[i] = fold(wide[i], by, _mm512_loadu_si512(data + at + 64 * i));
  }
  for (int i = 1; i < 4; i++) wide[i] = fold(wide[i - 1], everywhere(kBy512), wide[i]);
  memcpy(lanes, &wide[3], sizeof(wide[3]));
}

NARROW uint32_t folded(uint32_t crc, const uint8_t* data, size_t size, bool wide) {
  if (size < 64) return plain(crc, data, size);
  __m128i lanes[4];
  size_t done = 64;
  if (wide && size >= 256) {
    done = size / 256 * 256;
    fold_wide(lanes, crc, data, done);
  } else {
    for (int i = 0; i < 4; i++) lanes[i] = load(data + 16 * i);
    lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(int(crc)));
  }
  fold_narrow(lanes, data + done, size - done);
  done += (size - done) / 64 * 64;
  return finish(lanes, data + done, size - done);
}
#endif

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// The widest multiplication of this processor in bytes: 64, 16, or 0 for none, where zlib is faster.
EXPORT int dslaunch_crc32_width() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("sse4.1")) return 0;
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq") ? 64 : 16;
#else
  return 0;
#endif
}

// As zlib's crc32(before, data, size), with multiplications of `width` bytes.
EXPORT uint32_t dslaunch_crc32(uint32_t before, const uint8_t* data, size_t size, int width) {
#if defined(__x86_64__)
  if (width > 0) return ~folded(~before, data, size, width == 64);
#endif
  (void)width;
  return ~plain(~before, data, size);
}
