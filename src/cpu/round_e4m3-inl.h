// Rounds P for e4m3 products; compiled for each SIMD target.
#if defined(FLASHLATENT_CPU_ROUND_E4M3_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLATENT_CPU_ROUND_E4M3_INL_H_
#undef FLASHLATENT_CPU_ROUND_E4M3_INL_H_
#else
#define FLASHLATENT_CPU_ROUND_E4M3_INL_H_
#endif

#include <hwy/highway.h>

#include "core/formats/e4m3_latent.h"

HWY_BEFORE_NAMESPACE();
namespace flashlatent::cpu::HWY_NAMESPACE {

/// P (from 0 to 1, or NaN) rounded to e4m3 in units of 1 / kProbabilityScale; the same bits as encode() and
/// decode() of core/e4m3.h.
template <class Tag>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<Tag> round_e4m3(Tag tag, hwy::HWY_NAMESPACE::Vec<Tag> p) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToSigned<Tag> ints;
  const auto x = hn::Mul(p, hn::Set(tag, e4m3_latent::kProbabilityScale));
  const auto bits = hn::BitCast(ints, x);
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(ints, 1));
  const auto up = hn::Add(hn::Add(bits, hn::Set(ints, 0x7FFFF)), odd);
  const auto normal = hn::BitCast(tag, hn::And(up, hn::Set(ints, ~0xFFFFF)));
  const auto grid = hn::Set(tag, 0x1p14F);  // the last bit of 2^14 is 2^-9, as that of e4m3's subnormals
  const auto subnormal = hn::Sub(hn::Add(x, grid), grid);
  const auto rounded = hn::IfThenElse(hn::Lt(x, hn::Set(tag, 0x1p-6F)), subnormal, normal);
  return hn::IfThenElse(hn::IsNaN(p), p, hn::Mul(rounded, hn::Set(tag, 1 / e4m3_latent::kProbabilityScale)));
}

}  // namespace flashlatent::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
