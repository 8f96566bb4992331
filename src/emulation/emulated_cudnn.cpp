// cuDNN's part of the `cudnn` kernel on the emulated device: a plan computes a strided view, or its
// backward pass, by the definition, from and to bf16. A row that sees no key makes NaN, with an LSE
// of -inf: the library promises nothing.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <vector>

#include "core/check.h"
#include "core/random.h"
#include "emulation/emulated_device.h"
#include "kernels/cuda/cudnn_graph.h"

namespace longnet {

namespace {

float dot(const uint16_t* a, const uint16_t* b, int64_t count) {
  float sum = 0;
  for (int64_t c = 0; c < count; ++c) sum += bf16_value(a[c]) * bf16_value(b[c]);
  return sum;
}
void add(std::span<float> to, float factor, const uint16_t* row) {
  for (float& x : to) x += factor * bf16_value(*row++);
}
float log_sum_exp(const std::vector<float>& scores) {
  const float largest = std::ranges::max(scores);
  double sum = 0;
  for (const float x : scores) sum += std::exp(x - largest);
  return std::isinf(largest) ? largest : largest + float(std::log(sum));
}

void compute(const SdpaShape& s, const SdpaPointers& p) {
  const int64_t d = s.head_dim;
  const float scale = 1 / std::sqrt(float(d));
  for (int64_t i = 0; i < s.outer * s.inner; ++i) {
    const auto place = [&](const std::array<int64_t, 3>& strides, int64_t row) {
      return i / s.inner * strides[0] + i % s.inner * strides[1] + row * strides[2];
    };
    const auto row_of = [&](const void* base, const std::array<int64_t, 3>& strides, int64_t row) {
      return static_cast<const uint16_t*>(base) + place(strides, row);
    };
    const auto write = [&](const std::vector<float>& from, void* to, int64_t at) {
      std::ranges::transform(from, static_cast<uint16_t*>(to) + at, bf16_bits);
    };
    std::vector<float> grad_k(size_t(s.keys * d)), grad_v(grad_k.size());
    for (int64_t row = 0; row < s.rows; ++row) {
      const uint16_t* const q = row_of(p.q, s.q, row);
      std::vector<float> weights(size_t(s.keys)), sum(static_cast<size_t>(d));  // sum: O or dQ
      for (int64_t key = 0; key < s.keys; ++key)
        weights[size_t(key)] =
            s.mask == ViewMask::kNone || key < row + (s.mask == ViewMask::kUpToOwn ? 1 : 0)
                ? scale * dot(q, row_of(p.k, s.k, key), d)
                : -std::numeric_limits<float>::infinity();
      float& lse = p.lse[place(s.lse, row)];
      if (!s.backward) lse = log_sum_exp(weights);
      const auto* const g = s.backward ? row_of(p.grad_out, s.o, row) : nullptr;
      const float delta = s.backward ? dot(g, row_of(p.o, s.o, row), d) : 0;
      for (int64_t key = 0; key < s.keys; ++key) {
        const uint16_t *const k = row_of(p.k, s.k, key), *const v = row_of(p.v, s.k, key);
        const float weight = std::exp(weights[size_t(key)] - lse);
        if (!s.backward) {
          add(sum, weight, v);
          continue;
        }
        const float grad_score = scale * weight * (dot(g, v, d) - delta);
        add(sum, grad_score, k);
        add({&grad_k[size_t(key * d)], sum.size()}, grad_score, q);
        add({&grad_v[size_t(key * d)], sum.size()}, weight, g);
      }
      write(sum, s.backward ? p.grad_q : p.o, place(s.o, row));
    }
    if (!s.backward) continue;
    write(grad_k, p.grad_k, i * s.keys * d);
    write(grad_v, p.grad_v, i * s.keys * d);
  }
}

class EmulatedPlan final : public SdpaPlan {
 public:
  explicit EmulatedPlan(const SdpaShape& shape) : shape_(shape) {}
  int64_t workspace_bytes() const override { return 64; }
  void launch(const SdpaPointers& pointers, void* workspace, const Stream& stream) const override {
    check(workspace != nullptr, "cuDNN: no workspace");
    emulate_launch(stream.handle(), [shape = shape_, pointers] { compute(shape, pointers); });
  }

 private:
  SdpaShape shape_;
};

}  // namespace

const SdpaPlan& sdpa_plan(const SdpaShape& shape) {
  const std::string misaligned = why_misaligned(shape);
  check(misaligned.empty(), "cuDNN: ", misaligned);
  using Plans = std::map<SdpaShape, EmulatedPlan>;
  static thread_local Plans& plans = *std::make_unique<Plans>().release();  // never freed
  return plans.try_emplace(shape, shape).first->second;
}

std::string why_cudnn_absent() { return ""; }
std::string describe_cudnn() { return "emulated"; }

}  // namespace longnet
