#include "comm/testing/communicator_checks.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace longnet {
namespace {

// Repeats itself after 256 bytes, which are copied: sanitizers look at each that is computed.
std::vector<std::byte> pattern(int seed, size_t size) {
  std::vector<std::byte> data(size);
  for (size_t i = 0; i < std::min<size_t>(size, 256); ++i)
    data[i] = std::byte((size_t(seed) * 131 + i * 7) & 0xFF);
  for (size_t done = 256; done < size; done *= 2)
    std::memcpy(&data[done], data.data(), std::min(done, size - done));
  return data;
}

// Several messages of each size in flight, in order.
void check_ring(Communicator& comm, std::initializer_list<size_t> sizes) {
  if (comm.size() == 1) return;
  const int next = (comm.rank() + 1) % comm.size();
  const int prev = (comm.rank() + comm.size() - 1) % comm.size();
  for (const size_t size : sizes) {
    std::vector<std::vector<std::byte>> out, in;
    std::vector<Communicator::Request> requests;
    for (int i = 0; i < 20; ++i) {
      out.push_back(pattern(comm.rank() * 100 + i, size + size_t(i)));
      in.emplace_back(size + size_t(i));
    }
    for (int i = 0; i < 20; ++i) {
      requests.push_back(comm.isend(next, out[size_t(i)]));
      requests.push_back(comm.irecv(prev, in[size_t(i)]));
    }
    for (const auto request : requests) comm.wait(request);
    for (int i = 0; i < 20; ++i)
      check(std::memcmp(in[size_t(i)].data(), pattern(prev * 100 + i, size + size_t(i)).data(),
                        size + size_t(i)) == 0,
            "message ", i, " arrived changed");
  }
}

// Unequal parts, empty ones, groups of neighbours.
void check_gathers(Communicator& comm) {
  for (int count = 1; count <= comm.size(); ++count)
    for (int first = 0; first + count <= comm.size(); ++first) {
      const RankGroup group{first, 1, count};
      if (group.index_of(comm.rank()) < 0) continue;
      comm.open_group(group);
      for (const bool some_empty : {false, true}) {
        std::vector<int64_t> counts;
        std::vector<std::byte> expected;
        for (int i = 0; i < count; ++i) {
          counts.push_back(some_empty && i % 2 == 0 ? 0 : 64 * (1 + group[i]));
          const auto part = pattern(group[i], size_t(counts.back()));
          expected.insert(expected.end(), part.begin(), part.end());
        }
        const size_t mine = size_t(counts[size_t(group.index_of(comm.rank()))]);
        const CommCounters before = comm.counters();
        std::vector<std::byte> into(expected.size());
        int64_t begin = 0;  // the own part is in place
        for (int i = 0; i < group.index_of(comm.rank()); ++i) begin += counts[size_t(i)];
        const auto own = pattern(comm.rank(), mine);
        std::copy(own.begin(), own.end(), into.begin() + begin);
        comm.wait(comm.iall_gather(group, into, counts));
        check(into == expected, "gather among ", count, " ranks from ", first, " is wrong");
        check(comm.counters().bytes_sent - before.bytes_sent == int64_t(mine) * (count - 1),
              "gather counts ", comm.counters().bytes_sent - before.bytes_sent, " bytes");
        check(comm.counters().messages_sent - before.messages_sent == (mine > 0 ? count - 1 : 0),
              "gather counts the wrong messages");
        const auto from =
            std::ranges::count_if(counts, [](int64_t c) { return c > 0; }) - (mine > 0);
        check(comm.counters().messages_received - before.messages_received == from,
              "gather counts ", comm.counters().messages_received - before.messages_received,
              " messages received");
      }
    }
}

// Rank p sends 4 (p + 4 q) bytes to rank q, in both orders of the group.
void check_exchanges(Communicator& comm) {
  for (const int rotation : {0, comm.size() - 1}) {
    const RankGroup group{.first = 0, .stride = 1, .count = comm.size(), .rotation = rotation};
    comm.open_group(group);
    const auto size = [](Rank from, Rank to) { return int64_t{4} * (from + 4 * to); };
    std::vector<int64_t> out_counts, in_counts;
    std::vector<std::byte> out, expected;
    for (int i = 0; i < group.count; ++i) {
      out_counts.push_back(size(comm.rank(), group[i]));
      in_counts.push_back(size(group[i], comm.rank()));
      const auto sent = pattern(comm.rank() * 16 + group[i], size_t(out_counts.back()));
      const auto got = pattern(group[i] * 16 + comm.rank(), size_t(in_counts.back()));
      out.insert(out.end(), sent.begin(), sent.end());
      expected.insert(expected.end(), got.begin(), got.end());
    }
    const CommCounters before = comm.counters();
    std::vector<std::byte> into(expected.size());
    comm.wait(comm.iall_to_all(group, out, out_counts, into, in_counts));
    check(into == expected, "all-to-all of rotation ", rotation, " is wrong");
    check(comm.counters().bytes_sent - before.bytes_sent ==
              int64_t(out.size()) - size(comm.rank(), comm.rank()),
          "all-to-all counts ", comm.counters().bytes_sent - before.bytes_sent, " bytes");
  }
}

void check_collectives(Communicator& comm) {
  double values[2] = {double(comm.rank()), -double(comm.rank())};
  comm.all_max(values);
  check(values[0] == comm.size() - 1 && values[1] == 0, "all_max gives ", values[0], ", ",
        values[1]);
  check(comm.sum_of(1.0) == comm.size(), "all_sum is wrong");
  const Rank root = comm.size() - 1;
  check(comm.broadcast_flag(comm.rank() == root, root), "broadcast lost the root's flag");
  const auto texts = comm.all_texts(std::string(size_t(comm.rank()), 'x'));
  for (size_t i = 0; i < texts.size(); ++i)
    check(texts[i].size() == i, "text of rank ", i, " is wrong");
}

}  // namespace

void check_communicator(Communicator& comm) {
  comm.barrier();
  check_ring(comm, {1, 4097, 300000});
  check_gathers(comm);
  check_exchanges(comm);
  check_collectives(comm);
  for (int count = 1; count <= comm.size(); ++count) {
    const auto part = comm.first_ranks(count);
    check((part != nullptr) == (comm.rank() < count), "first_ranks(", count,
          ") has the wrong members");
    if (part) {
      check(part->size() == count && part->rank() == comm.rank(), "first_ranks(", count,
            ") is numbered wrongly");
      check_ring(*part, {1, 4097});
    }
  }
  comm.resting_barrier();
}

}  // namespace longnet
