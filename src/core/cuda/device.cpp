#include "core/cuda/device.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <utility>

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
                    .l2_bytes = p.l2CacheSize};
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

namespace {

void* allocate(const MemoryLedger& ledger, const std::string& tag, int64_t bytes,
               DeviceBuffer::Kind kind) {
  check(bytes >= 0, "a buffer of ", bytes, " bytes");
  require_admitted(ledger, tag, bytes);
  if (bytes == 0) return nullptr;
  constexpr int64_t kBlock = int64_t{2} << 20;
  const bool shared = kind == DeviceBuffer::Kind::kShared;
  const int64_t taken = shared ? (bytes + kBlock - 1) / kBlock * kBlock : bytes;
  void* at = nullptr;
  const cudaError_t status = cudaMalloc(&at, size_t(taken));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw DeviceOutOfMemory(concat("the device refused ", bytes, " bytes for ", tag, "; ",
                                   device_free_bytes(), " are free"));
  }
  check_cuda(status, "cudaMalloc");
  return at;
}

// An error here must not show up at the next launch.
void free_on_device(void* data) {
  if (cudaFree(data) != cudaSuccess) cudaGetLastError();
}

// Returns the bytes of a handle, from which another process rebuilds it (handle_of).
template <class Handle>
std::string bytes_of(const Handle& handle) {
  return {reinterpret_cast<const char*>(&handle), sizeof handle};
}
template <class Handle>
Handle handle_of(const std::string& bytes, const char* what) {
  Handle handle;
  check(bytes.size() == sizeof handle, what, " handle of ", bytes.size(), " bytes");
  std::memcpy(&handle, bytes.data(), sizeof handle);
  return handle;
}

}  // namespace

DeviceBuffer::DeviceBuffer(MemoryLedger& ledger, const std::string& tag, int64_t bytes, Kind kind)
    : LedgerBuffer(ledger, tag, bytes, allocate(ledger, tag, bytes, kind), free_on_device) {}

void DeviceBuffer::upload_bytes(const void* from, int64_t bytes) {
  check(bytes <= size(), "an upload of ", bytes, " bytes into ", size());
  if (bytes == 0) return;
  check_cuda(cudaMemcpy(data(), from, size_t(bytes), cudaMemcpyHostToDevice), "cudaMemcpy");
  // From pageable memory the copy may still be under way when cudaMemcpy returns, and our streams
  // do not wait for the default stream, which carries it.
  check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "an upload");
}

PinnedBuffer::PinnedBuffer(int64_t bytes) : bytes_(bytes) {
  void* at = nullptr;
  if (bytes > 0) check_cuda(cudaMallocHost(&at, size_t(bytes)), "cudaMallocHost");
  data_.reset(static_cast<std::byte*>(at));
}

void DestroyHandle::operator()(std::byte* page_locked) const noexcept { cudaFreeHost(page_locked); }
void DestroyHandle::operator()(CUstream_st* stream) const noexcept { cudaStreamDestroy(stream); }
void DestroyHandle::operator()(CUevent_st* event) const noexcept {
  if (cudaEventDestroy(event) != cudaSuccess) cudaGetLastError();
}
void DestroyHandle::operator()(CUgraphExec_st* graph) const noexcept {
  cudaGraphExecDestroy(graph);
}

Stream::Stream(Priority priority) {
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities");
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                          priority == Priority::kHigh ? greatest : least),
             "cudaStreamCreate");
  handle_.reset(stream);
}
void Stream::wait(const Event& event) const {
  check_cuda(cudaStreamWaitEvent(handle(), event.handle()), "cudaStreamWaitEvent");
}
void Stream::copy(void* into, const void* from, int64_t bytes) const {
  if (bytes > 0)
    check_cuda(cudaMemcpyAsync(into, from, size_t(bytes), cudaMemcpyDefault, handle()),
               "cudaMemcpyAsync");
}
void Stream::fill(void* at, int byte, int64_t bytes) const {
  if (bytes > 0) check_cuda(cudaMemsetAsync(at, byte, size_t(bytes), handle()), "cudaMemsetAsync");
}
void Stream::synchronize() const { check_cuda(cudaStreamSynchronize(handle()), "on the device"); }

Event::Event(Kind kind) {
  unsigned flags = kind == Kind::kTiming ? cudaEventDefault : cudaEventDisableTiming;
  if (kind == Kind::kShared) flags |= cudaEventInterprocess;
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate");
  handle_.reset(event);
}
void Event::record(const Stream& stream) const {
  check_cuda(cudaEventRecord(handle(), stream.handle()), "cudaEventRecord");
}
void Event::synchronize() const { check_cuda(cudaEventSynchronize(handle()), "on the device"); }
bool Event::over() const {
  const cudaError_t status = cudaEventQuery(handle());
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check_cuda(status, "on the device");
  return true;
}
double Event::seconds_since(const Event& begin) const {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin.handle(), handle()), "cudaEventElapsedTime");
  return double(milliseconds) * 1e-3;
}
std::string Event::export_handle() const {
  cudaIpcEventHandle_t shared;
  check_cuda(cudaIpcGetEventHandle(&shared, handle()), "cudaIpcGetEventHandle");
  return bytes_of(shared);
}
Event Event::import_handle(const std::string& bytes) {
  cudaEvent_t event = nullptr;
  check_cuda(cudaIpcOpenEventHandle(&event, handle_of<cudaIpcEventHandle_t>(bytes, "an event")),
             "cudaIpcOpenEventHandle");
  return Event(event);
}

Graph::Graph(const Stream& stream, const std::function<void()>& record) {
  check_cuda(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal),
             "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    record();
  } catch (...) {  // else the stream would stay in capture mode
    cudaStreamEndCapture(stream.handle(), &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream.handle(), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t launchable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&launchable, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(status, "cudaGraphInstantiate");
  handle_.reset(launchable);
}
void Graph::launch(const Stream& stream) const {
  check_cuda(cudaGraphLaunch(handle_.get(), stream.handle()), "cudaGraphLaunch");
}

std::string export_memory(const void* allocation) {
  cudaIpcMemHandle_t handle;
  check_cuda(cudaIpcGetMemHandle(&handle, const_cast<void*>(allocation)), "cudaIpcGetMemHandle");
  return bytes_of(handle);
}
void* import_memory(const std::string& bytes) {
  void* at = nullptr;
  check_cuda(cudaIpcOpenMemHandle(&at, handle_of<cudaIpcMemHandle_t>(bytes, "a memory"),
                                  cudaIpcMemLazyEnablePeerAccess),
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

}  // namespace longnet
