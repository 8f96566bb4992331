// Loops over independent items on `threads` OpenMP threads; without OpenMP, or on one thread, plain
// loops. The body must not throw.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "core/check.h"

namespace longnet {

// Throws where the scratch memory of all threads is too small or not aligned.
inline void check_workspace(std::span<const std::byte> workspace, int64_t needed, int threads) {
  check(std::ssize(workspace) >= needed, "workspace of ", workspace.size(),
        " bytes is too small for ", threads, " threads, needed: ", needed);
  check(reinterpret_cast<uintptr_t>(workspace.data()) % 64 == 0, "workspace at ",
        static_cast<const void*>(workspace.data()), " is not 64-byte aligned");
}

// body(list, item, thread) for each item in [0, items(list)) of each list; dynamic, since causal
// tasks differ in cost.
template <class List, class Items, class Body>
void parallel_for_lists(std::span<const List> lists, int threads, const Items& items,
                        const Body& body) {
#if defined(_OPENMP)
  if (threads > 1 && !lists.empty()) {
#pragma omp parallel num_threads(threads)
    for (const List& list : lists) {
      const int64_t count = items(list);
#pragma omp for schedule(dynamic) nowait
      for (int64_t i = 0; i < count; ++i) body(list, i, omp_get_thread_num());
    }
    return;
  }
#endif
  (void)threads;
  for (const List& list : lists) {
    const int64_t count = items(list);
    for (int64_t i = 0; i < count; ++i) body(list, i, 0);
  }
}

// body(item, thread) for each item in [0, items).
template <class Body>
void parallel_for(int64_t items, int threads, const Body& body) {
  parallel_for_lists(
      std::span<const int64_t>(&items, 1), items > 1 ? threads : 1, [](int64_t n) { return n; },
      [&](int64_t, int64_t item, int thread) { body(item, thread); });
}

// body(task, begin, rows) for consecutive pieces of at most `piece_rows` rows of each task.
template <class Task, class Body>
void parallel_for_pieces(std::span<const Task> tasks, int64_t piece_rows, int threads,
                         const Body& body) {
  parallel_for_lists(
      tasks, threads, [&](const Task& task) { return (task.rows + piece_rows - 1) / piece_rows; },
      [&](const Task& task, int64_t piece, int) {
        const int64_t begin = piece * piece_rows;
        body(task, begin, std::min(piece_rows, task.rows - begin));
      });
}

}  // namespace longnet
