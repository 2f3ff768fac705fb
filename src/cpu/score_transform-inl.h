// Applies scale, soft cap and ALiBi to scores before the softmax; compiled for each SIMD target.
#if defined(FLASHLATENT_CPU_SCORE_TRANSFORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASHLATENT_CPU_SCORE_TRANSFORM_INL_H_
#undef FLASHLATENT_CPU_SCORE_TRANSFORM_INL_H_
#else
#define FLASHLATENT_CPU_SCORE_TRANSFORM_INL_H_
#endif

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include "cpu/block_math.h"

HWY_BEFORE_NAMESPACE();
namespace flashlatent::cpu::HWY_NAMESPACE {

template <class Tag>
class ScoreTransform {
 public:
  using Vector = hwy::HWY_NAMESPACE::Vec<Tag>;

  explicit ScoreTransform(const TileSpec& spec)
      : scale_(spec.scale), cap_(spec.soft_cap), alibi_(spec.alibi) {}

  HWY_INLINE Vector operator()(Vector score, Vector slope, Vector distance) const {
    namespace hn = hwy::HWY_NAMESPACE;
    const Tag tag;
    score = hn::Mul(score, hn::Set(tag, scale_));
    if (cap_ != 0) {
      const Vector x = hn::Div(score, hn::Set(tag, cap_));
      const Vector capped = hn::Mul(hn::Set(tag, cap_), hn::Tanh(tag, x));
      score = hn::IfThenElse(hn::IsNaN(x), x, capped);  // Tanh() of Highway may lose NaN
    }
    return alibi_ ? hn::MulAdd(slope, distance, score) : score;
  }

 private:
  float scale_, cap_;
  bool alibi_;
};

}  // namespace flashlatent::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
