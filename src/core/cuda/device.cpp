#include "core/cuda/device.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/cuda/cuda_check.h"

namespace longnet {

void check_cuda(int status, Located what) {
  if (status == cudaSuccess) [[likely]]
    return;
  const auto error = static_cast<cudaError_t>(status);
  cudaGetLastError();  // clears an error that is not sticky
  fail_at(concat(what.text, ": ", cudaGetErrorName(error), ", ", cudaGetErrorString(error)),
          what.where);
}

DeviceReport describe_devices(bool with_free_memory) {
  DeviceReport report{.built_in = true, .toolkit = CUDART_VERSION};
  cudaDriverGetVersion(&report.driver);
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (report.driver == 0) {
    report.unusable = "no NVIDIA driver (libcuda.so.1) on this machine";
  } else if (status != cudaSuccess) {
    report.unusable = concat("no usable GPU: ", cudaGetErrorString(status),
                             " (the driver supports CUDA ", cuda_version_text(report.driver),
                             ", this build needs ", cuda_version_text(report.toolkit), ")",
                             report.driver < report.toolkit
                                 ? "; update the driver, or build with an older toolkit"
                                 : "");
  } else if (count == 0) {
    report.unusable = "the driver shows no GPU (see CUDA_VISIBLE_DEVICES)";
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
    DeviceInfo info{.index = i,
                    .name = p.name,
                    .major = p.major,
                    .minor = p.minor,
                    .multiprocessors = p.multiProcessorCount,
                    .memory_bytes = int64_t(p.totalGlobalMem),
                    .l2_bytes = p.l2CacheSize,
                    .shared_bytes_per_block = int64_t(p.sharedMemPerBlockOptin)};
    for (const char byte : p.uuid.bytes) {
      char text[3];
      std::snprintf(text, sizeof text, "%02x", unsigned(static_cast<unsigned char>(byte)));
      info.uuid += text;
    }
    cudaDeviceGetAttribute(&info.clock_khz, cudaDevAttrClockRate, i);
    size_t free_bytes = 0, total = 0;
    int before = 0;
    if (with_free_memory && cudaGetDevice(&before) == cudaSuccess &&
        cudaSetDevice(i) == cudaSuccess && cudaMemGetInfo(&free_bytes, &total) == cudaSuccess)
      info.free_bytes = int64_t(free_bytes);
    if (with_free_memory) cudaSetDevice(before);
    report.devices.push_back(std::move(info));
  }
  return report;
}

void use_device(int device) { check_cuda(cudaSetDevice(device), "cudaSetDevice"); }

DeviceBuffer::DeviceBuffer(MemoryLedger& ledger, std::string tag, int64_t bytes, Kind kind)
    : tag_(std::move(tag)), bytes_(bytes) {
  check(bytes >= 0, "a buffer of ", bytes, " bytes");
  require_admitted(ledger, tag_, bytes);
  if (bytes > 0) {
    constexpr int64_t kBlock = int64_t{2} << 20;
    const int64_t taken = kind == Kind::kShared ? (bytes + kBlock - 1) / kBlock * kBlock : bytes;
    void* at = nullptr;
    const cudaError_t status = cudaMalloc(&at, size_t(taken));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw DeviceOutOfMemory(concat("the device refused ", bytes, " bytes for ", tag_, "; ",
                                     device_free_bytes(), " are free"));
    }
    check_cuda(status, "cudaMalloc");
    data_ = static_cast<std::byte*>(at);
  }
  ledger_ = &ledger;
  ledger.add(tag_, bytes);
}

void DeviceBuffer::release() noexcept {
  if (ledger_ == nullptr) return;
  // An error here must not show up at the next launch.
  if (cudaFree(data_) != cudaSuccess) cudaGetLastError();
  ledger_->add(tag_, -bytes_);
  ledger_ = nullptr;
}

void DeviceBuffer::upload_bytes(const void* from, int64_t bytes) {
  check(bytes <= bytes_, "an upload of ", bytes, " bytes into ", bytes_);
  if (bytes == 0) return;
  check_cuda(cudaMemcpy(data_, from, size_t(bytes), cudaMemcpyHostToDevice), "cudaMemcpy");
  // From pageable memory the copy may still be under way when cudaMemcpy returns, and our streams
  // do not wait for the default stream, which carries it.
  check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "an upload");
}

PinnedBuffer::PinnedBuffer(int64_t bytes) : bytes_(bytes) {
  void* at = nullptr;
  if (bytes > 0) check_cuda(cudaMallocHost(&at, size_t(bytes)), "cudaMallocHost");
  data_ = static_cast<std::byte*>(at);
}
PinnedBuffer::~PinnedBuffer() {
  if (data_) cudaFreeHost(data_);
}

Stream::Stream(Priority priority) {
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities");
  check_cuda(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking,
                                          priority == Priority::kHigh ? greatest : least),
             "cudaStreamCreate");
}
Stream::~Stream() { cudaStreamDestroy(handle_); }
void Stream::wait(const Event& event) const {
  check_cuda(cudaStreamWaitEvent(handle_, event.handle()), "cudaStreamWaitEvent");
}
void Stream::copy(void* into, const void* from, int64_t bytes) const {
  if (bytes > 0)
    check_cuda(cudaMemcpyAsync(into, from, size_t(bytes), cudaMemcpyDefault, handle_),
               "cudaMemcpyAsync");
}
void Stream::fill(void* at, int byte, int64_t bytes) const {
  if (bytes > 0) check_cuda(cudaMemsetAsync(at, byte, size_t(bytes), handle_), "cudaMemsetAsync");
}
void Stream::synchronize() const { check_cuda(cudaStreamSynchronize(handle_), "on the device"); }

Event::Event(Kind kind) {
  unsigned flags = kind == Kind::kTiming ? cudaEventDefault : cudaEventDisableTiming;
  if (kind == Kind::kShared) flags |= cudaEventInterprocess;
  check_cuda(cudaEventCreateWithFlags(&handle_, flags), "cudaEventCreate");
}
Event::~Event() {
  if (handle_ && cudaEventDestroy(handle_) != cudaSuccess) cudaGetLastError();
}
void Event::record(const Stream& stream) const {
  check_cuda(cudaEventRecord(handle_, stream.handle()), "cudaEventRecord");
}
void Event::synchronize() const { check_cuda(cudaEventSynchronize(handle_), "on the device"); }
bool Event::over() const {
  const cudaError_t status = cudaEventQuery(handle_);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check_cuda(status, "on the device");
  return true;
}
double Event::seconds_since(const Event& begin) const {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin.handle_, handle_), "cudaEventElapsedTime");
  return double(milliseconds) * 1e-3;
}
std::vector<std::byte> Event::export_handle() const {
  cudaIpcEventHandle_t handle;
  check_cuda(cudaIpcGetEventHandle(&handle, handle_), "cudaIpcGetEventHandle");
  std::vector<std::byte> bytes(sizeof handle);
  std::memcpy(bytes.data(), &handle, sizeof handle);
  return bytes;
}
Event Event::import_handle(const std::vector<std::byte>& bytes) {
  cudaIpcEventHandle_t handle;
  check(bytes.size() == sizeof handle, "an event handle of ", bytes.size(), " bytes");
  std::memcpy(&handle, bytes.data(), sizeof handle);
  cudaEvent_t event = nullptr;
  check_cuda(cudaIpcOpenEventHandle(&event, handle), "cudaIpcOpenEventHandle");
  return {Adopt{}, event};
}

void Graph::begin(const Stream& stream) {
  check_cuda(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal),
             "cudaStreamBeginCapture");
}
void Graph::abandon(const Stream& stream) noexcept {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream.handle(), &graph);
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();
}
void Graph::end(const Stream& stream) {
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream.handle(), &graph), "cudaStreamEndCapture");
  const cudaError_t status = cudaGraphInstantiate(&handle_, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(status, "cudaGraphInstantiate");
}
Graph::~Graph() {
  if (handle_) cudaGraphExecDestroy(handle_);
}
void Graph::launch(const Stream& stream) const {
  check_cuda(cudaGraphLaunch(handle_, stream.handle()), "cudaGraphLaunch");
}

std::vector<std::byte> export_memory(const void* allocation) {
  cudaIpcMemHandle_t handle;
  check_cuda(cudaIpcGetMemHandle(&handle, const_cast<void*>(allocation)), "cudaIpcGetMemHandle");
  std::vector<std::byte> bytes(sizeof handle);
  std::memcpy(bytes.data(), &handle, sizeof handle);
  return bytes;
}
void* import_memory(const std::vector<std::byte>& bytes) {
  cudaIpcMemHandle_t handle;
  check(bytes.size() == sizeof handle, "a memory handle of ", bytes.size(), " bytes");
  std::memcpy(&handle, bytes.data(), sizeof handle);
  void* at = nullptr;
  check_cuda(cudaIpcOpenMemHandle(&at, handle, cudaIpcMemLazyEnablePeerAccess),
             "cudaIpcOpenMemHandle (device memory of another process; containers need --ipc=host)");
  return at;
}
void close_memory(void* imported) noexcept {
  if (cudaIpcCloseMemHandle(imported) != cudaSuccess) cudaGetLastError();
}
void reach_device(int other) {
  int can = 0;
  check_cuda(cudaDeviceCanAccessPeer(&can, current_device(), other), "cudaDeviceCanAccessPeer");
  if (can == 0) return;
  const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  else
    check_cuda(status, "cudaDeviceEnablePeerAccess");
}

std::string device_bus_id(int device) {
  char text[32] = "";
  if (cudaDeviceGetPCIBusId(text, sizeof text, device) != cudaSuccess) cudaGetLastError();
  return text;
}
int current_device() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}
int current_multiprocessors() {
  int count = 0;
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, current_device()),
             "asking for multiprocessors");
  return count;
}
int64_t device_free_bytes() {
  size_t free_bytes = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
  return int64_t(free_bytes);
}
void device_synchronize() { check_cuda(cudaDeviceSynchronize(), "on the device"); }

}  // namespace longnet
