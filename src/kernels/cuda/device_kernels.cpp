// Registry of the GPU kernels. To add one: a file that defines its make function, and one line of
// kKernels.
#include <algorithm>

#include "kernels/cuda/device_kernel.h"

namespace longnet {
namespace {

struct NamedKernel {
  std::string_view name;
  int64_t max_head_dim;
  std::string (*why_absent)();  // reason on this machine; empty: it is present
  std::unique_ptr<DeviceKernel> (*make)();
};

std::string always_present() { return ""; }

constexpr NamedKernel kKernels[] = {
    {"cuda", 256, always_present, [] { return make_cuda_kernel(); }},
    {"cudnn", 128, why_cudnn_absent, make_cudnn_kernel},
    {"gather", 256, always_present, [] { return make_gather_kernel(make_cuda_kernel()); }},
#ifdef LONGNET_CUDA_SM90A
    {"cuda_sm90a", 128, why_sm90a_absent, [] { return make_sm90a_kernel(); }},
#endif
};

const NamedKernel* find(std::string_view name) {
  const auto* const at = std::ranges::find(kKernels, name, &NamedKernel::name);
  return at == std::end(kKernels) ? nullptr : at;
}

}  // namespace

std::vector<std::string> device_kernel_names() {
  std::vector<std::string> names;
  for (const NamedKernel& kernel : kKernels) names.emplace_back(kernel.name);
  return names;
}

bool is_device_kernel(std::string_view name) { return find(name) != nullptr; }

std::string why_device_kernel_unsupported(std::string_view name, const AttendOptions& options) {
  const NamedKernel* const kernel = find(name);
  check(kernel != nullptr, "no GPU kernel is called ", name);
  if (options.dtype != DType::kBFloat16)
    return concat("kernel ", name, " reads bf16, not ", to_string(options.dtype),
                  ": set model.dtype to bf16");
  const std::string why = why_head_dim_unsupported(options.head_dim, kernel->max_head_dim);
  return why.empty() ? "" : concat("kernel ", name, ": ", why);
}

std::string why_device_kernel_absent(std::string_view name) {
  const NamedKernel* const kernel = find(name);
  check(kernel != nullptr, "no GPU kernel is called ", name);
  const DeviceReport report = describe_devices();
  if (!report.unusable.empty()) return concat("kernel ", name, " needs a GPU: ", report.unusable);
  for (const DeviceInfo& device : report.devices)
    if (device.major < 8)
      return concat("kernel ", name, " needs compute capability 8.0, device ", device.index, " (",
                    device.name, ") has ", device.major, ".", device.minor);
  return kernel->why_absent();
}

std::unique_ptr<DeviceKernel> make_device_kernel(std::string_view name) {
  const NamedKernel* const kernel = find(name);
  if (kernel == nullptr)
    throw UsageError("unknown GPU kernel '", name, "': use one of ",
                     join(device_kernel_names(), ", "));
  return kernel->make();
}

}  // namespace longnet
