// Choosing among the tile shapes that a kernel is compiled for: lists of launchers with a name, a
// head_dim (the largest that fits) and an element, defaults first, ascending head_dim.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/device_kernel.h"

namespace longnet {

// Those of the smallest padded head dimension that fits.
template <class Launcher>
std::vector<const Launcher*> fitting_launchers(std::span<const Launcher> launchers,
                                               DeviceElement element, int64_t head_dim) {
  std::vector<const Launcher*> found;
  for (const Launcher& l : launchers)
    if (l.element == element && l.head_dim >= head_dim &&
        (found.empty() || found.front()->head_dim == l.head_dim))
      found.push_back(&l);
  return found;
}

// The default where `shape` is empty; null when there is none of that name.
template <class Launcher>
const Launcher* find_launcher(std::span<const Launcher> launchers, DeviceElement element,
                              int64_t head_dim, std::string_view shape) {
  for (const Launcher* l : fitting_launchers(launchers, element, head_dim))
    if (shape.empty() || l->name == shape) return l;
  return nullptr;
}

template <class Launcher>
std::vector<std::string> launcher_names(std::span<const Launcher> launchers, int64_t head_dim) {
  std::vector<std::string> names;
  for (const Launcher* l : fitting_launchers(launchers, DeviceElement::kBFloat16, head_dim))
    names.emplace_back(l->name);
  return names;
}

}  // namespace longnet
