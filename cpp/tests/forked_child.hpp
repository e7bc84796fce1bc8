// SPDX-License-Identifier: BSD-3-Clause
//
// A child of fork() that computes, and may hang. Windows has no fork().
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

/// Runs `work` in a forked child, which SIGALRM ends if it hangs; returns the exit status, or
/// -signal.
template <class Work>
int in_child(Work&& work) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(10);
    _exit(work());
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
