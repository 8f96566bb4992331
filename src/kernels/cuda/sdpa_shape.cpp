#include "kernels/cuda/sdpa_shape.h"

#include <algorithm>

#include "core/check.h"

namespace longnet {

SdpaShape sdpa_shape(const StridedView& view, int64_t head_dim, DeviceElement element) {
  const ViewTask& t = view.first;
  const int64_t d = head_dim, rows = t.q.rows;
  SdpaShape s{.outer = view.outer,
              .inner = view.inner,
              .rows = rows,
              .keys = t.kv.rows,
              .head_dim = d,
              .q = {view.q.outer, view.q.inner, t.q.row_stride},
              .k = {view.k.outer, view.k.inner, t.kv.row_stride},
              .v = {view.v.outer, view.v.inner, t.kv.row_stride},
              .o = {view.inner * rows * d, rows * d, d},
              .lse = {view.lse.outer, view.lse.inner, t.out.lse_stride},
              .element = element,
              .mask = t.mask};
  for (auto* strides : {&s.q, &s.k, &s.v, &s.o, &s.lse}) {
    auto& [outer, inner, row] = *strides;
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
