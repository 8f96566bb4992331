#include "execute/cuda/testing/emulated_device.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "core/check.h"

namespace {

// All streams of all ranks, which are threads, under one lock.
std::recursive_mutex& world() {
  static std::recursive_mutex mutex;
  return mutex;
}
std::condition_variable_any more_work;
size_t enqueued = 0;
int device_count = 1;
thread_local int this_device = 0;
constexpr std::chrono::seconds kPatience{20};

// Does `work`, again and again while another rank has not come far enough. Not for use in work.
void until_done(const std::function<void()>& work) {
  std::unique_lock lock(world());
  for (;;) {
    const size_t before = enqueued;
    try {
      return work();
    } catch (const longnet::NotYet& reason) {
      if (!more_work.wait_for(lock, kPatience, [&] { return enqueued != before; }))
        throw longnet::Error(std::string("a rank waits for ever: ") + reason.what());
    }
  }
}

struct Busy {
  explicit Busy(bool& flag) : flag_(flag) { flag_ = true; }
  ~Busy() { flag_ = false; }
  bool& flag_;
};

struct Work {
  std::deque<std::function<void()>> queue;
  size_t done = 0;
  bool busy = false;

  void run_until(size_t position) {
    if (done >= position) return;
    longnet::check(!busy, "a stream waits for itself: work ", done, " of ", position);
    const Busy mark(busy);
    while (done < position) {
      queue[done]();
      queue[done] = nullptr;
      ++done;
    }
  }
};

}  // namespace

struct CUstream_st {
  std::shared_ptr<Work> work = std::make_shared<Work>();
  size_t recorded_from = 0;  // while a graph is recorded
};
struct CUevent_st {
  std::shared_ptr<Work> work;
  size_t position = 0;
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> work;
};

namespace longnet {

void emulate_launch(CUstream_st* stream, std::function<void()> kernel) {
  const std::lock_guard lock(world());
  stream->work->queue.push_back(std::move(kernel));
  ++enqueued;
  more_work.notify_all();
}
void emulate_launch(const Stream& stream, std::function<void()> kernel) {
  emulate_launch(stream.handle(), std::move(kernel));
}
std::function<void()> emulate_all_before(CUstream_st* stream) {
  const std::lock_guard lock(world());
  return
      [work = stream->work, position = stream->work->queue.size()] { work->run_until(position); };
}
void emulate_devices(int count) { device_count = count; }

DeviceReport describe_devices(bool) {
  DeviceReport report{.built_in = true};
  for (int i = 0; i < device_count; ++i)
    report.devices.push_back(
        {.index = i, .name = "emulated", .uuid = concat("e", i), .major = 8, .multiprocessors = 1});
  return report;
}
DeviceScope::DeviceScope(int device) : before_(std::exchange(this_device, device)) {}
DeviceScope::~DeviceScope() { this_device = before_; }

DeviceBuffer::DeviceBuffer(MemoryLedger& ledger, std::string tag, int64_t bytes, Kind)
    : ledger_(&ledger), tag_(std::move(tag)), bytes_(bytes) {
  if (bytes > 0)
    data_ = static_cast<std::byte*>(std::aligned_alloc(256, size_t(bytes + 255) / 256 * 256));
  ledger.add(tag_, bytes);
}
DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(tag_, other.tag_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
DeviceBuffer::~DeviceBuffer() { release(); }
void DeviceBuffer::release() noexcept {
  if (ledger_ == nullptr) return;
  std::free(data_);
  ledger_->add(tag_, -bytes_);
}
void DeviceBuffer::upload_bytes(const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(data_, from, size_t(bytes));
}

PinnedBuffer::PinnedBuffer(int64_t bytes)
    : data_(static_cast<std::byte*>(std::malloc(size_t(bytes + 1)))), bytes_(bytes) {}
PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
PinnedBuffer::~PinnedBuffer() { std::free(data_); }

Stream::Stream(Priority) : handle_(std::make_unique<CUstream_st>().release()) {}
Stream::~Stream() { std::unique_ptr<CUstream_st>(handle_).reset(); }
void Stream::wait(const Event& event) const {
  const std::lock_guard lock(world());
  const CUevent_st now = *event.handle();  // the record that is there now, as CUDA does it
  if (now.work) emulate_launch(*this, [now] { now.work->run_until(now.position); });
}
void Stream::copy(void* into, const void* from, int64_t bytes) const {
  emulate_launch(*this, [=] {
    if (bytes > 0) std::memcpy(into, from, size_t(bytes));
  });
}
void Stream::fill(void* at, int byte, int64_t bytes) const {
  emulate_launch(*this, [=] {
    if (bytes > 0) std::memset(at, byte, size_t(bytes));
  });
}
void Stream::synchronize() const {
  until_done([work = handle_->work] { work->run_until(work->queue.size()); });
}

Event::Event(Kind) : handle_(std::make_unique<CUevent_st>().release()) {}
Event::~Event() { std::unique_ptr<CUevent_st>(handle_).reset(); }
Event::Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}
void Event::record(const Stream& stream) const {
  const std::lock_guard lock(world());
  *handle_ = {stream.handle()->work, stream.handle()->work->queue.size()};
}
void Event::synchronize() const {
  until_done([this] {
    check(handle_->work != nullptr, "an event that was never recorded");
    handle_->work->run_until(handle_->position);
  });
}
double Event::seconds_since(const Event& begin) const {
  const std::lock_guard lock(world());
  check(handle_->work && begin.handle_->work, "times of an event that was never recorded");
  check(handle_->work->done >= handle_->position, "times of an event that is not over");
  return 0;
}
// What a stream gets between begin and end is not its work, but the graph's.
void Graph::begin(const Stream& stream) {
  const std::lock_guard lock(world());
  stream.handle()->recorded_from = stream.handle()->work->queue.size();
}
void Graph::abandon(const Stream& stream) noexcept {
  const std::lock_guard lock(world());
  stream.handle()->work->queue.resize(stream.handle()->recorded_from);
}
void Graph::end(const Stream& stream) {
  const std::lock_guard lock(world());
  auto& queue = stream.handle()->work->queue;
  const auto first = queue.begin() + ptrdiff_t(stream.handle()->recorded_from);
  handle_ = std::make_unique<CUgraphExec_st>(CUgraphExec_st{{first, queue.end()}}).release();
  queue.erase(first, queue.end());
}
Graph::~Graph() { std::unique_ptr<CUgraphExec_st>(handle_).reset(); }
void Graph::launch(const Stream& stream) const {
  for (const auto& work : handle_->work) emulate_launch(stream, work);
}

std::vector<std::byte> Event::export_handle() const { throw Error("one process"); }
Event Event::import_handle(const std::vector<std::byte>&) { throw Error("one process"); }
std::vector<std::byte> export_memory(const void*) { throw Error("one process"); }
void* import_memory(const std::vector<std::byte>&) { throw Error("one process"); }
void close_memory(void*) noexcept {}
int current_device() { return this_device; }

}  // namespace longnet
