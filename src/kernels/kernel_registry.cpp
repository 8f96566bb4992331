// The kernels of the host by name. README.md says how to add one.
#include "kernels/attention_kernel.h"

namespace longnet {

std::span<const KernelInfo> kernels() {
  static constexpr KernelInfo kKernels[] = {
      {"reference", "the host, double precision, obvious and slow", make_reference_kernel},
      {"cpu", "the host's cores, SIMD by Highway, OpenMP threads", make_cpu_kernel},
      {"cpu_amx", "the same, attention by Intel's AMX tiles", make_amx_kernel},
  };
  return kKernels;
}

std::unique_ptr<AttentionKernel> make_kernel(std::string_view name) {
  for (const KernelInfo& kernel : kernels())
    if (kernel.name == name) return kernel.make();
  throw UsageError("unknown kernel '", name, "': use one of ", join(names_of(kernels()), ", "));
}

}  // namespace longnet
