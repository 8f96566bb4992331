#include "kernels/cuda/sdpa_shape.h"

#include <algorithm>

#include "core/check.h"

namespace longnet {

SdpaShape sdpa_shape(const StridedView& view, int64_t head_dim, DeviceElement element) {
  const AttendGrid& g = view.grid;
  const AttendTask& t = g.task;
  const int64_t d = head_dim, rows = t.q.rows;
  constexpr int64_t kElement = 2;  // bytes
  const auto strides = [](const GridVector& step, int64_t unit, int64_t row_stride) {
    return std::array<int64_t, 3>{step[1] / unit, step[0] / unit, row_stride};
  };
  SdpaShape s{.outer = g.count[1],
              .inner = g.count[0],
              .rows = rows,
              .keys = view.kv.rows,
              .head_dim = d,
              .q = strides(g.q_step_bytes, kElement, t.q.row_stride),
              .k = strides(view.kv.step_bytes, kElement, view.kv.row_stride),
              .v = strides(view.kv.step_bytes, kElement, view.kv.row_stride),
              .o = {g.count[0] * rows * d, rows * d, d},
              .lse = strides(g.lse_step, 1, t.out.lse_stride),
              .element = element,
              .mask = view.mask};
  for (auto* tensor : {&s.q, &s.k, &s.v, &s.o, &s.lse}) {
    auto& [outer, inner, row] = *tensor;
    if (row == 0) row = d;
    if (inner == 0) inner = row * std::max(rows, s.keys);
    if (outer == 0) outer = inner * s.inner;
  }
  return s;
}

std::string why_misaligned(const SdpaShape& s) {
  const struct {
    const char* name;
    const std::array<int64_t, 3>& strides;
  } tensors[] = {{"Q", s.q}, {"K", s.k}, {"V", s.v}, {"O", s.o}};
  if (s.head_dim % 8 != 0) return concat("head_dim ", s.head_dim, " is not a multiple of 8");
  const int64_t extent[3] = {s.outer, s.inner, std::max(s.rows, s.keys)};
  for (const auto& [name, strides] : tensors)
    for (size_t i = 0; i < 3; ++i)
      if (extent[i] > 1 && strides[i] % 8 != 0)
        return concat("stride ", i, " of ", name, " is ", strides[i],
                      " elements, not a multiple of 16 bytes");
  return "";
}

}  // namespace longnet
