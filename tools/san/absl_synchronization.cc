// Makes Abseil's mutexes visible to ThreadSanitizer.
//
// The system's Abseil is not instrumented, so ThreadSanitizer would not see that a mutex orders
// accesses of two threads, and would report false races. These definitions take precedence over
// those of the shared library, notify ThreadSanitizer, and call them. Empty without
// -fsanitize=thread.
#ifdef __SANITIZE_THREAD__

#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

// The library may evaluate a waiter's Condition in any thread that unlocks, after that thread's
// release. The mutex still orders such reads, so they are ignored.
class IgnoreReads {
 public:
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

template <typename Function>
Function Next(const char* symbol) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, symbol));
}

}  // namespace

// `mangled` is the member function's symbol in the library.
#define NEXT(result, mangled, ...) static const auto next = Next<result (*)(__VA_ARGS__)>(mangled);

void Mutex::Lock() {
  NEXT(void, "_ZN4absl7debian35Mutex4LockEv", Mutex*)
  next(this);
  __tsan_acquire(this);
}

void Mutex::ReaderLock() {
  NEXT(void, "_ZN4absl7debian35Mutex10ReaderLockEv", Mutex*)
  next(this);
  __tsan_acquire(this);
}

bool Mutex::TryLock() {
  NEXT(bool, "_ZN4absl7debian35Mutex7TryLockEv", Mutex*)
  const bool locked = next(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

bool Mutex::ReaderTryLock() {
  NEXT(bool, "_ZN4absl7debian35Mutex13ReaderTryLockEv", Mutex*)
  const bool locked = next(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::Unlock() {
  NEXT(void, "_ZN4absl7debian35Mutex6UnlockEv", Mutex*)
  __tsan_release(this);
  IgnoreReads ignore;
  next(this);
}

void Mutex::ReaderUnlock() {
  NEXT(void, "_ZN4absl7debian35Mutex12ReaderUnlockEv", Mutex*)
  __tsan_release(this);
  IgnoreReads ignore;
  next(this);
}

void Mutex::LockWhen(const Condition& condition) {
  NEXT(void, "_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE", Mutex*, const Condition&) {
    IgnoreReads ignore;
    next(this, condition);
  }
  __tsan_acquire(this);
}

void Mutex::ReaderLockWhen(const Condition& condition) {
  NEXT(void, "_ZN4absl7debian35Mutex14ReaderLockWhenERKNS0_9ConditionE", Mutex*, const Condition&) {
    IgnoreReads ignore;
    next(this, condition);
  }
  __tsan_acquire(this);
}

void Mutex::Await(const Condition& condition) {
  NEXT(void, "_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE", Mutex*, const Condition&)
  __tsan_release(this);
  {
    IgnoreReads ignore;
    next(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  NEXT(bool, "_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE", Mutex*,
       const Condition&, Duration)
  __tsan_release(this);
  bool met;
  {
    IgnoreReads ignore;
    met = next(this, condition, timeout);
  }
  __tsan_acquire(this);
  return met;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  NEXT(bool, "_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE", Mutex*,
       const Condition&, Time)
  __tsan_release(this);
  bool met;
  {
    IgnoreReads ignore;
    met = next(this, condition, deadline);
  }
  __tsan_acquire(this);
  return met;
}

void CondVar::Wait(Mutex* mutex) {
  NEXT(void, "_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE", CondVar*, Mutex*)
  __tsan_release(mutex);
  {
    IgnoreReads ignore;
    next(this, mutex);
  }
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  NEXT(bool, "_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE", CondVar*,
       Mutex*, Duration)
  __tsan_release(mutex);
  bool timed_out;
  {
    IgnoreReads ignore;
    timed_out = next(this, mutex, timeout);
  }
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  NEXT(bool, "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", CondVar*, Mutex*,
       Time)
  __tsan_release(mutex);
  bool timed_out;
  {
    IgnoreReads ignore;
    timed_out = next(this, mutex, deadline);
  }
  __tsan_acquire(mutex);
  return timed_out;
}

void Notification::Notify() {
  NEXT(void, "_ZN4absl7debian312Notification6NotifyEv", Notification*)
  __tsan_release(this);
  next(this);
}

void Notification::WaitForNotification() const {
  NEXT(void, "_ZNK4absl7debian312Notification19WaitForNotificationEv", const Notification*)
  next(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  NEXT(bool, "_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE",
       const Notification*, Duration)
  const bool notified = next(this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  NEXT(bool, "_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE",
       const Notification*, Time)
  const bool notified = next(this, deadline);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

#undef NEXT
ABSL_NAMESPACE_END
}  // namespace absl

#endif  // __SANITIZE_THREAD__
