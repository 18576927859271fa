// Threads of the executor on the host, kept between calls.
#pragma once

#include <functional>

namespace verbatim {

/// Calls `work` in this thread and in up to `threads` - 1 others, and returns when all calls have.
/// `work` must not throw, and a call of it returns only when those under way can do what is left:
/// threads that come too late, because others keep the cores busy, are not waited for. Between
/// calls the others sleep, after 200 us awake, until the process ends; one made by fork() starts
/// its own.
void in_parallel(int threads, const std::function<void()>& work);

}  // namespace verbatim
