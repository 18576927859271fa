// Threads on the host, kept between calls.
#pragma once

#include <cstdint>
#include <functional>

namespace verbatim {

/// Calls `work` in this thread and in up to `threads` - 1 others, and returns when all calls have.
/// `work` must not throw, and a call of it returns only when those under way can do what is left:
/// threads that come too late, because others keep the cores busy, are not waited for. Between
/// calls the others sleep, after 200 us awake, until the process ends; one made by fork() starts
/// its own.
void in_parallel(int threads, const std::function<void()>& work);

/// Calls `work` with 0 to `count` - 1, each once, in this thread and others as in_parallel(). What
/// calls throw: of the least of them, when all have returned.
void for_each_in_parallel(int threads, int64_t count, const std::function<void(int64_t)>& work);

/// Cores that this thread may use.
int core_count();

}  // namespace verbatim
