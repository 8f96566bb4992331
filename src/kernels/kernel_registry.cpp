// The kernels by name. To add one: a file that defines its make function, and one line of kKernels.
#include "kernels/attention_kernel.h"

namespace longnet {
namespace {

struct NamedKernel {
  std::string_view name;
  std::unique_ptr<AttentionKernel> (*make)();
};

constexpr NamedKernel kKernels[] = {
    {"reference", make_reference_kernel},
    {"cpu", make_cpu_kernel},
};

}  // namespace

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const NamedKernel& kernel : kKernels) names.emplace_back(kernel.name);
  return names;
}

std::unique_ptr<AttentionKernel> make_kernel(std::string_view name) {
  for (const NamedKernel& kernel : kKernels)
    if (kernel.name == name) return kernel.make();
  throw UsageError("unknown kernel '", name, "': use one of ", join(kernel_names(), ", "));
}

}  // namespace longnet
