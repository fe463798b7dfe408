"""One object under several references."""

import ray

ref = ray.put({"a": [1]})


@ray.remote
def same(refs):
    return refs[0] == refs[1], len({*refs}), ray.get(refs[0])


print(ray.get(same.remote([ref, ref])))
copy = ray.get(ref)
copy["a"].append(2)
print(ray.get(ref), ray.ObjectRef(ref.binary()) == ref, ray.ObjectRef.nil().is_nil())
