// The kernels of a GPU by name. ../README.md says how to add one.
#include <algorithm>

#include "kernels/cuda/device_kernel.h"

namespace longnet {
namespace {

std::string always_present() { return ""; }

constexpr DeviceKernelInfo kKernels[] = {
    {"cuda", "a GPU from compute capability 8.0, own kernel on strided views", 256, 128, true,
     always_present, [] { return make_cuda_kernel(); }},
    {"cudnn", "cuDNN's attention on strided views, as a yardstick", 128, 128, false,
     why_cudnn_absent, make_cudnn_kernel},
    {"gather", "pack, dense attention, scatter: what strided views save", 256, 0, false,
     always_present, [] { return make_gather_kernel(make_cuda_kernel()); }},
    {"cuda_sm90a", "Hopper, own kernel with TMA and wgmma", 128, 128, true, why_sm90a_absent,
     [] { return make_sm90a_kernel(); }},
};

const DeviceKernelInfo* find(std::string_view name) {
  const auto* const at = std::ranges::find(kKernels, name, &DeviceKernelInfo::name);
  return at == std::end(kKernels) ? nullptr : at;
}

}  // namespace

std::span<const DeviceKernelInfo> device_kernels() { return kKernels; }

bool is_device_kernel(std::string_view name) { return find(name) != nullptr; }

std::string why_device_kernel_unsupported(std::string_view name, const AttendOptions& options,
                                          Pass pass) {
  const DeviceKernelInfo* const kernel = find(name);
  check(kernel != nullptr, "no GPU kernel is called ", name);
  if (has_backward(pass) && kernel->max_head_dim_backward == 0)
    return concat("kernel ", name, " has no backward pass: use kernel cuda");
  if (options.dtype != DType::kBFloat16)
    return concat("kernel ", name, " reads bf16, not ", to_string(options.dtype),
                  ": set model.dtype to bf16");
  if (options.output_dtype != DType::kFloat32 && (!kernel->rounds_output || has_backward(pass)))
    return concat(
        "kernel ", name, has_backward(pass) ? ", backward pass" : "", ": O in fp32, not ",
        to_string(options.output_dtype),
        " (model.output_dtype), which kernels cuda and cuda_sm90a store in a forward pass");
  std::string why = why_head_dim_unsupported(options.head_dim, kernel->max_head_dim);
  if (why.empty() && has_backward(pass)) {
    why = why_head_dim_unsupported(options.head_dim, kernel->max_head_dim_backward);
    if (!why.empty()) why += " in a backward pass";
  }
  return why.empty() ? "" : concat("kernel ", name, ": ", why);
}

std::string why_device_kernel_absent(std::string_view name) {
  const DeviceKernelInfo* const kernel = find(name);
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
  const DeviceKernelInfo* const kernel = find(name);
  if (kernel == nullptr)
    throw UsageError("unknown GPU kernel '", name, "': use one of ",
                     join(names_of(kKernels), ", "));
  return kernel->make();
}

}  // namespace longnet
