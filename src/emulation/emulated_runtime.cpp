// The part of the CUDA runtime that compiled .cu files call, on the emulated CUDA device. The
// PTX in their fat binaries is executed (ptx_machine.h), and their host text is the real one.
//
// Such files must hold PTX, not compressed: nvcc --no-compress, architecture compute_NN.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/cuda/device.h"
#include "emulation/emulated_device.h"
#include "emulation/ptx_machine.h"

namespace {

using longnet::check;

constexpr size_t kSharedWithoutAsking = 48 << 10, kMostShared = 227 << 10;

// fatbinary_section.h, and the header of a list of images.
struct Wrapper {
  int32_t magic, version;
  const std::byte* data;
  void* unused;
};
struct FatHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;  // behind the header
};
constexpr uint32_t kWrapperMagic = 0x466243B1, kFatMagic = 0xBA55ED50;

struct Module {
  const Wrapper* wrapper = nullptr;
  std::map<std::string, longnet::PtxKernel> kernels{};

  void load() {
    if (!kernels.empty()) return;
    FatHeader header{};
    check(uint32_t(wrapper->magic) == kWrapperMagic, "not a fat binary");
    std::memcpy(&header, wrapper->data, sizeof header);
    check(header.magic == kFatMagic, "not a list of device images");
    // PTX is the one image that is text, and ends with a zero.
    const std::string_view images(reinterpret_cast<const char*>(wrapper->data),
                                  header.header_bytes + header.bytes);
    const size_t at = images.find(".version ");
    check(at != images.npos, "no PTX, or compressed: nvcc --no-compress, an architecture with PTX");
    check(images.find(".version ", at + 1) == images.npos, "PTX of several architectures");
    kernels = longnet::load_ptx(images.substr(at, images.find('\0', at) - at));
  }
};

struct Function {
  Module* module = nullptr;
  std::string name{};
  size_t most_shared = kSharedWithoutAsking;
  unsigned launches = 0;  // number so far; they take the orders in turn
};

struct Runtime {
  std::mutex mutex;
  std::deque<Module> modules;
  std::map<const void*, Function> functions;  // by the address that host code launches
};
Runtime& runtime() {
  static auto* const one = new Runtime;  // used before main begins and after it ends
  return *one;
}

struct Configuration {
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};
thread_local std::vector<Configuration> configurations;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t fail(cudaError_t error) { return last_error = error; }

cudaError_t launch(const void* entry, const Configuration& c, void** arguments) {
  const std::scoped_lock lock(runtime().mutex);
  const auto found = runtime().functions.find(entry);
  if (found == runtime().functions.end()) return fail(cudaErrorInvalidDeviceFunction);
  Function& function = found->second;
  function.module->load();
  const longnet::PtxKernel& kernel = function.module->kernels.at(function.name);
  const bool flat = c.grid.y == 1 && c.grid.z == 1 && c.block.y == 1 && c.block.z == 1;
  if (!flat || c.grid.x == 0 || c.block.x == 0 || c.block.x > 1024 ||
      c.shared + size_t(kernel.shared_bytes) > function.most_shared)
    return fail(cudaErrorInvalidConfiguration);
  const unsigned turn = function.launches++;
  const longnet::PtxLaunch how{.grid = c.grid.x,
                               .block = c.block.x,
                               .shared_bytes = int64_t(c.shared),
                               .order = {.copies_land_late = turn % 2 == 1,
                                         .products_late = turn / 2 % 2 == 1,
                                         .warps_backwards = turn / 4 % 2 == 1},
                               .buffer = longnet::emulated_buffer};
  longnet::emulate_launch(
      c.stream, [&kernel, how, parameters = longnet::gather_parameters(kernel, arguments)] {
        longnet::launch_ptx(kernel, how, parameters);
      });
  return cudaSuccess;
}

// Refuses what the page of the CUDA driver API refuses, except a stride that is no multiple of the
// one before: the driver accepts those of other libraries' views.
CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                      const cuuint64_t* size, const cuuint64_t* stride, const cuuint32_t* box,
                      const cuuint32_t* every, CUtensorMapInterleave interleave,
                      CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                      CUtensorMapFloatOOBfill fill) {
  bool good =
      type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 && rank == longnet::PtxTensorMap::kMostDims &&
      interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && swizzle == CU_TENSOR_MAP_SWIZZLE_128B &&
      fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && reinterpret_cast<uintptr_t>(map) % 64 == 0 &&
      reinterpret_cast<uintptr_t>(address) % 16 == 0 && box[0] * 2 <= 128 && box[0] * 2 % 16 == 0;
  longnet::PtxTensorMap out{.address = reinterpret_cast<uint64_t>(address),
                            .valid = longnet::PtxTensorMap::kValid};
  for (size_t d = 0; good && d < rank; ++d) {
    good = size[d] >= 1 && size[d] <= uint64_t{1} << 32 && box[d] >= 1 && box[d] <= 256 &&
           every[d] == 1;
    if (good && d > 0)
      good = stride[d - 1] % 16 == 0 && stride[d - 1] > 0 && stride[d - 1] < uint64_t{1} << 40;
    out.size[d] = uint32_t(std::min(size[d], cuuint64_t{0xFFFFFFFF}));
    out.box[d] = uint16_t(box[d]);
    if (d > 0) out.stride[d - 1] = stride[d - 1];
  }
  if (!good) return CUDA_ERROR_INVALID_VALUE;
  std::memset(static_cast<void*>(map), 0, sizeof *map);
  std::memcpy(static_cast<void*>(map), &out, sizeof out);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  const std::scoped_lock lock(runtime().mutex);
  Module& module = runtime().modules.emplace_back(Module{static_cast<const Wrapper*>(wrapper)});
  return reinterpret_cast<void**>(&module);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}  // at exit
void __cudaRegisterFunction(void** module, const char* entry, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  const std::scoped_lock lock(runtime().mutex);
  runtime().functions[entry] = {.module = reinterpret_cast<Module*>(module), .name = name};
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const Configuration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared = c.shared;
  std::memcpy(stream, &c.stream, sizeof c.stream);
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* entry) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(entry));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared, cudaStream_t stream) {
  return launch(kernel, {grid, block, shared, stream}, arguments);
}
cudaError_t cudaLaunchKernel(const void* entry, dim3 grid, dim3 block, void** arguments,
                             size_t shared, cudaStream_t stream) {
  return launch(entry, {grid, block, shared, stream}, arguments);
}
cudaError_t cudaFuncSetAttribute(const void* entry, cudaFuncAttribute attribute, int value) {
  const std::scoped_lock lock(runtime().mutex);
  const auto found = runtime().functions.find(entry);
  if (found == runtime().functions.end()) return fail(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      size_t(value) > kMostShared)
    return fail(cudaErrorInvalidValue);
  found->second.most_shared = std::max(kSharedWithoutAsking, size_t(value));
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** found, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *found = known ? reinterpret_cast<void*>(&encode_tiled) : nullptr;
  if (result != nullptr)
    *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
}

namespace longnet {

void check_cuda(int status, Located what) {
  if (status != cudaSuccess) fail_at(concat(what.text, ": CUDA error ", status), what.where);
}

}  // namespace longnet
