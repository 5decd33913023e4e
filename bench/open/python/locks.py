"""A worker that uses redis-py's Lock: see order.go for the orders, one in JSON on each line of the input."""

import gc
import json
import os
import queue
import sys
import threading
import time

import redis
from redis.sentinel import Sentinel

client = None
lease = 30.0
kept = {}
output = threading.Lock()


def now():
    return time.time_ns() // 1000


def lock_of(name):
    return client.lock(name, timeout=lease)


def name_of(o, i):
    names = o.get("names")
    return f"{o['name']}:{names[i % len(names)] if names else i}"


FAILED = -2  # of an answer: see order.go


def once(o, i, end):
    """One lock with its unlock: when it was held, when its unlock began, and whether a call failed."""
    got = gave = -1
    try:
        lock = lock_of(name_of(o, i))
        if not lock.acquire(blocking_timeout=max(0, (end - now()) / 1e6)):
            return got, gave, False
        got = now() - o["start"]
        if o.get("hold"):
            time.sleep(o["hold"] / 1e6)
        gave = now() - o["start"]
        lock.release()
        return got, gave, False
    except redis.RedisError:
        return (got, gave, True) if got >= 0 else (FAILED, FAILED, True)


def pause_until(instant):
    left = (instant - now()) / 1e6
    if left > 0:
        time.sleep(left)


def load(o):
    arrivals = o.get("arrivals") or []
    end = o["start"] + o["duration"]
    got, gave, lost = [-1] * len(arrivals), [-1] * len(arrivals), []
    due = queue.SimpleQueue()

    def work():
        while (i := due.get()) is not None:
            got[i], gave[i], failed = once(o, i, end)
            if failed:
                lost.append(i)

    threads = [threading.Thread(target=work) for _ in range(min(o["workers"], len(arrivals)))]
    for t in threads:
        t.start()
    collected = sum(s["collections"] for s in gc.get_stats())
    for i, at in enumerate(arrivals):
        pause_until(o["start"] + at)
        due.put(i)
    for _ in threads:
        due.put(None)
    for t in threads:
        t.join()
    collected = sum(s["collections"] for s in gc.get_stats()) - collected
    return {"got": got, "gave": gave, "served": sum(g >= 0 for g in got), "lost": len(lost), "gcs": collected}


def closed(o):
    pause_until(o["start"])
    end = o["start"] + o["duration"]
    lock, counts = threading.Lock(), {"next": 0, "served": 0, "lost": 0}

    def work():
        while now() < end:
            with lock:
                counts["next"] += 1
                i = counts["next"]
            got, _, failed = once(o, i, end)
            with lock:
                counts["lost"] += failed
                counts["served"] += got >= 0 and now() <= end and not failed

    threads = [threading.Thread(target=work) for _ in range(o["workers"])]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return {"served": counts["served"], "lost": counts["lost"]}


def lock_one(o):
    """Its thread holds the lock until the unlock: a lock belongs to the thread that has acquired it."""
    lock = lock_of(o["name"])
    while True:
        try:
            lock.acquire()
            break
        except redis.RedisError:  # an application tries again; redis-py does not
            time.sleep(0.1)
    at = now()
    if not o.get("keep"):
        try:
            lock.release()
        except redis.RedisError:  # the next waiter is served late, and that is measured
            pass
        return {"at": at}
    keeping = kept[o["name"]] = (threading.Event(), queue.SimpleQueue())
    answer(o, {"at": at})
    keeping[0].wait()
    try:
        lock.release()
        keeping[1].put({"at": now()})
    except redis.RedisError as e:
        keeping[1].put({"at": now(), "err": repr(e)})
    return None


def unlock(o):
    released, unlocked = kept.pop(o["name"])
    released.set()
    return unlocked.get()


def hold(o):
    locks = [lock_of(f"{o['name']}:{i}") for i in range(o["count"])]
    for lock in locks:
        lock.acquire()
    kept[o["name"]] = locks
    return {"served": len(locks)}


def crowd(o):
    for _ in range(o["count"]):
        threading.Thread(target=lock_of(o["name"]).acquire, daemon=True).start()
    return {}


def usage(_):
    gc.collect()
    with open("/proc/self/statm") as statm:
        return {"heap": int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")}


def open_client(o):
    global client, lease
    if o.get("lease"):
        lease = o["lease"] / 1e6
    if o.get("sentinels"):
        hosts = [tuple(a.rsplit(":", 1)) for a in o["sentinels"]]
        client = Sentinel(hosts, socket_timeout=1).master_for(o["master"], socket_timeout=1)
    else:
        host, port = o["addr"].rsplit(":", 1)
        client = redis.Redis(host, int(port))
    client.ping()
    return {}


def lost(_):
    return {"err": "no notice"}


orders = {
    "open": open_client,
    "load": load,
    "closed": closed,
    "lock": lock_one,
    "unlock": unlock,
    "lost": lost,
    "hold": hold,
    "crowd": crowd,
    "usage": usage,
}


def answer(o, a):
    with output:
        print(json.dumps({**a, "id": o["id"]}), flush=True)


def perform(o):
    try:
        a = orders[o["op"]](o)
    except Exception as e:  # the driver reports it
        a = {"err": repr(e)}
    if a is not None:
        answer(o, a)


for line in sys.stdin:
    parsed = json.loads(line)
    if parsed["op"] == "open":
        perform(parsed)
    else:
        threading.Thread(target=perform, args=(parsed,), daemon=True).start()
os._exit(0)
