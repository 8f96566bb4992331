#include "comm/communicator.h"

#include <unistd.h>

#include <algorithm>

#include "core/check.h"

namespace longnet {
namespace {

// Returns the parts of a buffer one after the other: part i at the i-th call.
template <class Bytes>
auto parts_in_order(Bytes all, std::span<const int64_t> counts) {
  return [all, counts](int i) mutable {
    const Bytes part = all.first(size_t(counts[size_t(i)]));
    all = all.subspan(part.size());
    return part;
  };
}

// A message to and one from each other member, of which out_to(i) and in_from(i) are the bytes.
template <class OutTo, class InFrom>
void list_messages(const RankGroup& group, int me, OutTo out_to, InFrom in_from, Transfers& list) {
  list.clear();
  size_t before_me = 0;
  for (int i = 0; i < group.count; ++i) {
    const std::span<const std::byte> out = out_to(i);
    const std::span<std::byte> in = in_from(i);
    if (i == me) before_me = list.size();
    if (i == me) continue;
    if (!out.empty()) list.push_back(message_to(group[i], out));
    if (!in.empty()) list.push_back(message_from(group[i], in));
  }
  std::ranges::rotate(list, list.begin() + std::ptrdiff_t(before_me));
}

}  // namespace

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

void CommCounters::modelled(std::span<const Transfer> transfers) {
  const int64_t bytes = bytes_sent, messages = messages_sent;
  for (const Transfer& t : transfers) moved(t);
  modelled_bytes_sent += bytes_sent - bytes;
  modelled_messages_sent += messages_sent - messages;
}

void list_all_gather(const RankGroup& group, Rank rank, std::span<std::byte> into,
                     std::span<const int64_t> counts, Transfers& out) {
  const int me = group.index_of(rank);
  check(me >= 0 && int(counts.size()) == group.count, "not a gather of this rank");
  const std::span<std::byte> own = part_of(into, counts, me);
  list_messages(
      group, me, [&](int) { return own; }, parts_in_order(into, counts), out);
}

void list_all_to_all(const RankGroup& group, Rank rank, std::span<const std::byte> from,
                     std::span<const int64_t> from_counts, std::span<std::byte> into,
                     std::span<const int64_t> into_counts, Transfers& out) {
  const int me = group.index_of(rank);
  check(me >= 0 && int(from_counts.size()) == group.count &&
            from_counts.size() == into_counts.size() &&
            from_counts[size_t(me)] == into_counts[size_t(me)],
        "not an all-to-all of this rank");
  list_messages(group, me, parts_in_order(from, from_counts), parts_in_order(into, into_counts),
                out);
}

Communicator::Request Communicator::iall_gather(const RankGroup& group, std::span<std::byte> into,
                                                std::span<const int64_t> counts) {
  list_all_gather(group, rank(), into, counts, collective_);
  return post(collective_);
}

Communicator::Request Communicator::iall_to_all(const RankGroup& group,
                                                std::span<const std::byte> from,
                                                std::span<const int64_t> from_counts,
                                                std::span<std::byte> into,
                                                std::span<const int64_t> into_counts) {
  list_all_to_all(group, rank(), from, from_counts, into, into_counts, collective_);
  const int me = group.index_of(rank());
  std::ranges::copy(part_of(from, from_counts, me), part_of(into, into_counts, me).begin());
  return post(collective_);
}

}  // namespace longnet
