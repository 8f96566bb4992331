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
#include <exception>
#include <map>

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

int library_version() {
  int version = 0;
  check_nccl(nccl().version(&version), "ncclGetVersion");
  return version;
}

class NcclComm {
 public:
  // Collective over the members, which have agreed on the id.
  NcclComm(const ncclUniqueId& id, int size, int rank) {
    check_nccl(nccl_.init(&handle_, size, id, rank), "ncclCommInitRank");
  }
  ~NcclComm() {
    if (std::uncaught_exceptions() > 0) abort();  // destroy would wait for peers for ever
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
  // Called before the buffers are freed.
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
  NcclTransport(DeviceTransportKind kind, Communicator& host) : DeviceTransport(kind, host) {
    open_group(everyone_);
  }
  bool takes_multiprocessors() const override { return true; }
  void open(std::span<const std::span<std::byte>> buffers) override {
    if (kind() == DeviceTransportKind::kNccl) return;
    buffers_.assign(buffers.begin(), buffers.end());
    for (const auto& [unused, comm] : comms_) comm->register_buffers(buffers_);
  }
  void close() override {
    for (const auto& [unused, comm] : comms_) comm->deregister_all();
  }

  void open_group(const RankGroup& group) override {
    const int me = group.index_of(host().rank());
    const bool alone = group.count < 2 && group != everyone_;
    if (me < 0 || alone || comms_.contains(group)) return;
    ncclUniqueId id{};
    const auto bytes = std::as_writable_bytes(std::span(&id, 1));
    if (me == 0) {
      check_nccl(nccl().unique_id(&id), "ncclGetUniqueId");
      for (int i = 1; i < group.count; ++i) host().wait(host().isend(group[i], bytes));
    } else {
      host().wait(host().irecv(group[0], bytes));
    }
    comms_[group] = std::make_unique<NcclComm>(id, group.count, me);
    comms_[group]->register_buffers(buffers_);
  }

  void stream_barrier(const Stream& stream) override {
    if (host().size() == 1) return;
    if (barrier_bytes_.size() == 0)
      barrier_bytes_ = DeviceBuffer(scratch_, "stream_barrier", host().size());
    check_nccl(nccl().all_gather(barrier_bytes_.data() + host().rank(), barrier_bytes_.data(), 1,
                                 ncclUint8, comms_.at(everyone_)->get(), stream.handle()),
               "ncclAllGather");
  }
  void check_health() const override {
    for (const auto& [unused, comm] : comms_) comm->check_health();
  }
  void abort() noexcept override {
    for (const auto& [unused, comm] : comms_) comm->abort();
  }

 private:
  void start(Post& post, const Stream& stream) override {
    check_nccl(nccl().group_start(), "ncclGroupStart");
    for (const Transfer& t : post.transfers) {
      if (t.bytes == 0) continue;
      const bool sends = t.kind == Transfer::Kind::kSend;
      const auto call = [&](auto* function) {
        return function(t.data, size_t(t.bytes), ncclUint8, t.peer, comms_.at(everyone_)->get(),
                        stream.handle());
      };
      check_nccl(sends ? call(nccl().send) : call(nccl().recv), sends ? "ncclSend" : "ncclRecv");
      counters_.moved(t);
    }
    check_nccl(nccl().group_end(), "ncclGroupEnd");
    post.end_on(stream);
  }

  void start_gather(Post& post, const Gather& gather, const Stream& stream) override {
    const auto& [group, into, counts] = gather;
    const int64_t first = counts.front();
    const ncclComm_t comm = comms_.at(group)->get();
    counters_.modelled(post.transfers);
    if (std::ranges::count(counts, first) == group.count) {
      const std::byte* const own = into.data() + group.index_of(host().rank()) * first;
      check_nccl(
          nccl().all_gather(own, into.data(), size_t(first), ncclUint8, comm, stream.handle()),
          "ncclAllGather");
    } else {
      check_nccl(nccl().group_start(), "ncclGroupStart");
      for (int root = 0; root < group.count; ++root)
        if (const auto part = part_of(into, counts, root); !part.empty())
          check_nccl(nccl().broadcast(part.data(), part.data(), part.size(), ncclUint8, root, comm,
                                      stream.handle()),
                     "ncclBroadcast");
      check_nccl(nccl().group_end(), "ncclGroupEnd");
    }
    post.end_on(stream);
  }

  const RankGroup everyone_{.count = host().size()};
  MemoryLedger scratch_;
  DeviceBuffer barrier_bytes_;                 // a byte of each rank
  std::vector<std::span<std::byte>> buffers_;  // registered ones
  std::map<RankGroup, std::unique_ptr<NcclComm>> comms_;
};

}  // namespace

std::string why_nccl_absent() {
  if (!nccl().missing.empty()) return nccl().missing;
  const int version = library_version();
  if (version / 10000 != NCCL_MAJOR || version / 100 < NCCL_VERSION_CODE / 100)
    return concat("NCCL ", library_version_text(version),
                  " was found, but this build's headers are ",
                  library_version_text(NCCL_VERSION_CODE), ": use that version or a newer one of ",
                  NCCL_MAJOR);
  return "";
}

std::string describe_nccl() {
  std::string why = why_nccl_absent();
  if (!why.empty()) return why;
  return concat(library_version_text(library_version()), " (headers ",
                library_version_text(NCCL_VERSION_CODE), ")");
}

std::unique_ptr<DeviceTransport> make_nccl_transport(DeviceTransportKind kind, Communicator& host) {
  const std::string why = why_nccl_absent();
  if (!why.empty()) throw UsageError("transport nccl: " + why);
  if (kind == DeviceTransportKind::kNcclRegistered &&
      (nccl().register_buffer == nullptr || nccl().deregister_buffer == nullptr))
    throw UsageError("transport nccl_registered needs NCCL 2.19 or newer: use nccl");
  return std::make_unique<NcclTransport>(kind, host);
}

}  // namespace longnet
