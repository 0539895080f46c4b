package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/pkg/errors"
)

// Stored is one version of an object in etcd. Revisions order the versions of all objects of a control plane; the resourceVersion of an
// object is its revision.
type Stored struct {
	Revision int64
	// Key of the object, such as /registry/pods/default/web.
	Key string
	// Value is the object as the API server encodes it, or nil if this version is its deletion.
	Value []byte
}

// registry is the prefix of all objects in etcd, and registryEnd the first key after them.
const registry, registryEnd = "/registry/", "/registry0"

// StoredRevision returns the current revision of etcd.
func (c *ControlPlane) StoredRevision(ctx context.Context) (int64, error) {
	var answer struct {
		Header etcdHeader `json:"header"`
	}
	err := c.callEtcd(ctx, "/v3/kv/range", map[string]any{"key": []byte(registry), "range_end": []byte(registryEnd), "count_only": true}, &answer)
	return answer.Header.Revision, err
}

// StoredAt returns all objects as of a revision. Keep selects keys.
func (c *ControlPlane) StoredAt(ctx context.Context, revision int64, keep func(key string) bool) ([]Stored, error) {
	var answer struct {
		KVs []etcdKV `json:"kvs"`
	}
	request := map[string]any{"key": []byte(registry), "range_end": []byte(registryEnd), "revision": revision}
	if err := c.callEtcd(ctx, "/v3/kv/range", request, &answer); err != nil {
		return nil, err
	}
	var all []Stored
	for _, kv := range answer.KVs {
		if keep(string(kv.Key)) {
			all = append(all, Stored{kv.Revision, string(kv.Key), kv.Value})
		}
	}
	return all, nil
}

// StoredBetween returns every version that was stored after one revision and up to another, in order. Nothing is missing, also when the
// API server was killed meanwhile: etcd is asked, which keeps all versions for at least five minutes. Keep selects keys. The last
// revision must be that of an object.
func (c *ControlPlane) StoredBetween(ctx context.Context, after, until int64, keep func(key string) bool) ([]Stored, error) {
	if after >= until {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(ctx) // ends the watch
	defer cancel()
	response, err := c.requestEtcd(ctx, "/v3/watch", map[string]any{"create_request": map[string]any{
		"key": []byte(registry), "range_end": []byte(registryEnd), "start_revision": after + 1,
	}})
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	var all []Stored
	for stream := json.NewDecoder(response.Body); ; {
		var answer struct {
			Result struct {
				Canceled bool   `json:"canceled"`
				Reason   string `json:"cancel_reason"`
				Events   []struct {
					Type string `json:"type"`
					KV   etcdKV `json:"kv"`
				} `json:"events"`
			} `json:"result"`
		}
		if err := stream.Decode(&answer); err != nil {
			return nil, errors.Wrapf(err, "reading the revisions of etcd of %s", c.Name())
		}
		if answer.Result.Canceled {
			return nil, errors.Errorf("etcd of %s does not have revision %d any more: %s", c.Name(), after+1, answer.Result.Reason)
		}
		for _, event := range answer.Result.Events {
			if event.KV.Revision > until {
				return all, nil
			}
			if event.Type == "DELETE" {
				event.KV.Value = nil
			}
			if keep(string(event.KV.Key)) {
				all = append(all, Stored{event.KV.Revision, string(event.KV.Key), event.KV.Value})
			}
			if event.KV.Revision == until {
				return all, nil
			}
		}
	}
}

// etcdHeader and etcdKV are in the JSON of etcd's gRPC gateway.
type (
	etcdHeader struct {
		Revision int64 `json:"revision,string"`
	}
	etcdKV struct {
		Key      []byte `json:"key"`
		Value    []byte `json:"value"`
		Revision int64  `json:"mod_revision,string"`
	}
)

func (c *ControlPlane) callEtcd(ctx context.Context, path string, request, answer any) error {
	response, err := c.requestEtcd(ctx, path, request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	return errors.Wrapf(json.NewDecoder(response.Body).Decode(answer), "reading the response of etcd of %s", c.Name())
}

func (c *ControlPlane) requestEtcd(ctx context.Context, path string, body any) (*http.Response, error) {
	content, err := json.Marshal(body)
	if err != nil {
		return nil, errors.Wrap(err, "encoding a request to etcd")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+loopback(c.ports.etcd())+path, bytes.NewReader(content))
	if err != nil {
		return nil, errors.Wrap(err, "creating a request to etcd")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, errors.Wrapf(err, "calling etcd of %s", c.Name())
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, errors.Errorf("etcd of %s answers %s to %s", c.Name(), response.Status, strings.TrimPrefix(path, "/v3/"))
	}
	return response, nil
}

// Store writes an object to etcd, without the validation of the API server.
func (c *ControlPlane) Store(ctx context.Context, key string, value []byte) error {
	return c.callEtcd(ctx, "/v3/kv/put", map[string]any{"key": []byte(key), "value": value}, &struct{}{})
}
