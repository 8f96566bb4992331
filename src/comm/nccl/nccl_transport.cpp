// nccl: one GPU per rank. Bootstrapped over the host communicator, whatever it is.
//
// NCCL runs the groups of one communicator in order, and a rank's group waits for its peers: the
// executor posts transfers in rounds that all ranks go through in the same order (op_groups.h).
// Gathers of unequal counts are grouped broadcasts, one per member; equal counts are an all-gather.
//
// nccl_registered is the same with the buffers registered at every communicator that uses them
// (ncclCommRegister, NCCL 2.19): NCCL may then read and write them in place, without its own
// copies.
#include <algorithm>
#include <deque>
#include <exception>
#include <map>
#include <numeric>

#include "comm/cuda/device_transport.h"
#include "comm/nccl/nccl_functions.h"
#include "core/check.h"

namespace longnet {
namespace {

void check_nccl(ncclResult_t status, Located what) {
  if (status == ncclSuccess) return;
  fail_at(concat("NCCL, ", what.text, ": ", nccl().error_string(status), " (",
                 nccl().last_error(nullptr), ")"),
          what.where);
}

std::string version_text(int v) {  // 22809 -> 2.28.9
  return concat(v / 10000, ".", v / 100 % 100, ".", v % 100);
}

class NcclComm {
 public:
  // Collective over the members, which have agreed on the id.
  NcclComm(const ncclUniqueId& id, int size, int rank) {
    check_nccl(nccl_.init(&handle_, size, id, rank), "ncclCommInitRank");
  }
  ~NcclComm() {
    if (std::uncaught_exceptions() > 0) abort();  // peers may never come: destroy would wait
    if (handle_ == nullptr) return;
    for (void* const buffer : registered_) nccl_.deregister_buffer(handle_, buffer);
    nccl_.destroy(handle_);
  }
  void abort() noexcept {
    if (handle_ != nullptr) nccl_.abort(handle_);
    handle_ = nullptr;
  }
  void check_health() const {
    ncclResult_t state = ncclSuccess;
    check_nccl(nccl_.async_error(handle_, &state), "ncclCommGetAsyncError");
    if (state != ncclInProgress) check_nccl(state, "while transfers were under way");
  }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;
  ncclComm_t get() const { return handle_; }
  void register_buffers(std::span<const std::span<std::byte>> buffers) {
    for (const std::span<std::byte> buffer : buffers) {
      if (buffer.empty()) continue;
      void* registered = nullptr;
      check_nccl(nccl_.register_buffer(handle_, buffer.data(), buffer.size(), &registered),
                 "ncclCommRegister");
      registered_.push_back(registered);
    }
  }
  // Before the buffers go.
  void deregister_all() {
    for (void* const buffer : registered_)
      check_nccl(nccl_.deregister_buffer(handle_, buffer), "ncclCommDeregister");
    registered_.clear();
  }

 private:
  const NcclFunctions& nccl_ = nccl();
  ncclComm_t handle_ = nullptr;
  std::vector<void*> registered_;
};

class NcclTransport final : public DeviceTransport {
 public:
  NcclTransport(Communicator& host, NcclBuffers kind) : DeviceTransport(host), kind_(kind) {
    ncclUniqueId id{};
    if (host.rank() == 0) check_nccl(nccl().unique_id(&id), "ncclGetUniqueId");
    host.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    world_ = std::make_unique<NcclComm>(id, host.size(), host.rank());
  }
  std::string_view name() const override {
    return kind_ == NcclBuffers::kRegistered ? "nccl_registered" : "nccl";
  }
  bool takes_multiprocessors() const override { return true; }
  void open(std::span<const std::span<std::byte>> buffers) override {
    if (kind_ == NcclBuffers::kPlain) return;
    buffers_.assign(buffers.begin(), buffers.end());
    world_->register_buffers(buffers_);
  }
  void close() override {
    world_->deregister_all();
    for (const auto& [unused, group] : groups_) group->deregister_all();
  }

  void open_group(const RankGroup& group) override {
    const int me = group.index_of(host().rank());
    if (me < 0 || group.count < 2 || groups_.contains(group)) return;
    ncclUniqueId id{};
    const auto bytes = std::as_writable_bytes(std::span(&id, 1));
    if (me == 0) {
      check_nccl(nccl().unique_id(&id), "ncclGetUniqueId");
      for (int i = 1; i < group.count; ++i) host().wait(host().isend(group[i], bytes));
    } else {
      host().wait(host().irecv(group[0], bytes));
    }
    groups_[group] = std::make_unique<NcclComm>(id, group.count, me);
    groups_[group]->register_buffers(buffers_);
  }

  Ticket post(std::span<const Transfer> transfers, const Stream& stream) override {
    count(transfers);
    check_nccl(nccl().group_start(), "ncclGroupStart");
    for (const Transfer& t : transfers) {
      if (t.bytes == 0) continue;
      const bool sends = t.kind == Transfer::Kind::kSend;
      const auto call = [&](auto* function) {
        return function(t.data, size_t(t.bytes), ncclUint8, t.peer, world_->get(), stream.handle());
      };
      check_nccl(sends ? call(nccl().send) : call(nccl().recv), sends ? "ncclSend" : "ncclRecv");
    }
    check_nccl(nccl().group_end(), "ncclGroupEnd");
    return ticket_after(stream);
  }

  Ticket post_gather(const RankGroup& group, std::byte* into, std::span<const int64_t> counts,
                     const Stream& stream) override {
    const int me = group.index_of(host().rank());
    check(me >= 0 && int(counts.size()) == group.count, "not a gather of this rank");
    if (group.count < 2) return ticket_after(stream);
    const int64_t own = counts[size_t(me)];
    counters_.bytes_sent += own * (group.count - 1);
    if (own > 0) counters_.messages_sent += group.count - 1;
    counters_.bytes_received += std::accumulate(counts.begin(), counts.end(), -own);
    const bool equal = std::ranges::all_of(counts, [&](int64_t bytes) { return bytes == own; });
    const ncclComm_t comm = groups_.at(group)->get();
    if (equal && own > 0) {
      check_nccl(
          nccl().all_gather(into + me * own, into, size_t(own), ncclUint8, comm, stream.handle()),
          "ncclAllGather");
      return ticket_after(stream);
    }
    check_nccl(nccl().group_start(), "ncclGroupStart");
    for (int root = 0; root < group.count; ++root) {
      const int64_t bytes = counts[size_t(root)];
      if (bytes > 0)
        check_nccl(
            nccl().broadcast(into, into, size_t(bytes), ncclUint8, root, comm, stream.handle()),
            "ncclBroadcast");
      into += bytes;
    }
    check_nccl(nccl().group_end(), "ncclGroupEnd");
    return ticket_after(stream);
  }

  void complete(Ticket ticket, const Stream& waiting) override {
    waiting.wait(events_.at(size_t(ticket)));
  }
  void stream_barrier(const Stream& stream) override {
    if (host().size() == 1) return;
    if (barrier_bytes_.size() == 0)
      barrier_bytes_ = DeviceBuffer(scratch_, "stream_barrier", host().size());
    check_nccl(nccl().all_gather(barrier_bytes_.data() + host().rank(), barrier_bytes_.data(), 1,
                                 ncclUint8, world_->get(), stream.handle()),
               "ncclAllGather");
  }
  void finish() override { used_ = 0; }
  void check_health() const override {
    world_->check_health();
    for (const auto& [unused, group] : groups_) group->check_health();
  }
  void abort() noexcept override {
    for (const auto& [unused, group] : groups_) group->abort();
    world_->abort();
  }

 private:
  Ticket ticket_after(const Stream& stream) {
    if (used_ == int(events_.size())) events_.emplace_back();
    events_[size_t(used_)].record(stream);
    return used_++;
  }

  NcclBuffers kind_;
  MemoryLedger scratch_;
  DeviceBuffer barrier_bytes_;                 // a byte of each rank
  std::vector<std::span<std::byte>> buffers_;  // registered ones
  std::unique_ptr<NcclComm> world_;
  std::map<RankGroup, std::unique_ptr<NcclComm>> groups_;
  std::deque<Event> events_;  // one per post of a run, used again in the next
  int used_ = 0;
};

}  // namespace

std::string why_nccl_absent() {
  if (!nccl().missing.empty()) return nccl().missing;
  int version = 0;
  check_nccl(nccl().version(&version), "ncclGetVersion");
  if (version / 10000 != NCCL_MAJOR || version / 100 < NCCL_VERSION_CODE / 100)
    return concat("NCCL ", version_text(version), " was found, but this build's headers are ",
                  version_text(NCCL_VERSION_CODE), ": use that version or a newer one of ",
                  NCCL_MAJOR);
  return "";
}

std::string describe_nccl() {
  std::string why = why_nccl_absent();
  if (!why.empty()) return why;
  int version = 0;
  check_nccl(nccl().version(&version), "ncclGetVersion");
  return concat(version_text(version), " (headers ", version_text(NCCL_VERSION_CODE), ")");
}

std::unique_ptr<DeviceTransport> make_nccl_transport(Communicator& host, NcclBuffers kind) {
  const std::string why = why_nccl_absent();
  if (!why.empty()) throw UsageError("transport nccl: " + why);
  if (kind == NcclBuffers::kRegistered &&
      (nccl().register_buffer == nullptr || nccl().deregister_buffer == nullptr))
    throw UsageError("transport nccl_registered needs NCCL 2.19 or newer: use nccl");
  return std::make_unique<NcclTransport>(host, kind);
}

}  // namespace longnet
