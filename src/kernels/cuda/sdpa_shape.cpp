#include "kernels/cuda/sdpa_shape.h"

#include "core/check.h"

namespace longnet {

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
