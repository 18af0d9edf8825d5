// Grafana's Prometheus data source, the module that Grafana's server runs the panels' queries by, behind the two paths that its
// pages ask: /api/ds/query, and the data source's resources (names and values for variables). The rest of the server is not here.
//
//	datasource ADDRESS PROMETHEUS JSON_DATA
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/grafana/grafana-plugin-sdk-go/backend"
	sdklog "github.com/grafana/grafana-plugin-sdk-go/backend/log"
	"github.com/grafana/grafana/pkg/promlib"
)

const (
	resources = "/api/datasources/uid/prometheus/resources/"
	bodyMax   = 1 << 20
)

type server struct {
	source  *promlib.Service
	context backend.PluginContext
}

// What the pages send with each query beside the data source's own fields.
type common struct {
	RefID         string  `json:"refId"`
	MaxDataPoints int64   `json:"maxDataPoints"`
	IntervalMS    float64 `json:"intervalMs"`
}

type request struct {
	From    string            `json:"from"`
	To      string            `json:"to"`
	Queries []json.RawMessage `json:"queries"`
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: datasource ADDRESS PROMETHEUS JSON_DATA")
	}
	instance := &backend.DataSourceInstanceSettings{
		ID: 1, UID: "prometheus", Type: "prometheus", Name: "Prometheus", URL: os.Args[2], JSONData: []byte(os.Args[3]),
		Updated: time.Now(),
	}
	s := &server{
		source:  promlib.NewService(nil, sdklog.New(), nil),
		context: backend.PluginContext{OrgID: 1, PluginID: "prometheus", DataSourceInstanceSettings: instance},
	}
	paths := http.NewServeMux()
	paths.HandleFunc("POST /api/ds/query", s.query)
	paths.HandleFunc(resources, s.resource)
	serving := &http.Server{Addr: os.Args[1], Handler: paths, ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(serving.ListenAndServe())
}

func (s *server) query(w http.ResponseWriter, r *http.Request) {
	asked, err := s.read(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := s.source.QueryData(r.Context(), asked)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		log.Print(err)
	}
}

func (s *server) read(r *http.Request) (*backend.QueryDataRequest, error) {
	var body request
	if err := json.NewDecoder(io.LimitReader(r.Body, bodyMax)).Decode(&body); err != nil {
		return nil, err
	}
	from, err := at(body.From)
	if err != nil {
		return nil, err
	}
	to, err := at(body.To)
	if err != nil {
		return nil, err
	}
	asked := &backend.QueryDataRequest{PluginContext: s.context, Headers: map[string]string{}}
	for _, raw := range body.Queries {
		var query common
		if err := json.Unmarshal(raw, &query); err != nil {
			return nil, err
		}
		if query.RefID == "" || query.MaxDataPoints <= 0 || query.IntervalMS <= 0 {
			return nil, errors.New("a query needs refId, maxDataPoints and intervalMs")
		}
		asked.Queries = append(asked.Queries, backend.DataQuery{
			RefID:         query.RefID,
			MaxDataPoints: query.MaxDataPoints,
			Interval:      time.Duration(query.IntervalMS * float64(time.Millisecond)),
			TimeRange:     backend.TimeRange{From: from, To: to},
			JSON:          raw,
		})
	}
	return asked, nil
}

func at(millis string) (time.Time, error) {
	number, err := strconv.ParseInt(millis, 10, 64)
	return time.UnixMilli(number), err
}

func (s *server) resource(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, bodyMax))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	path := strings.TrimPrefix(r.URL.Path, resources)
	call := &backend.CallResourceRequest{
		PluginContext: s.context, Path: path, Method: r.Method, Body: body,
		URL:     path + "?" + r.URL.RawQuery,
		Headers: map[string][]string{"Content-Type": {r.Header.Get("Content-Type")}},
	}
	err = s.source.CallResource(context.WithoutCancel(r.Context()), call, sender(func(answer *backend.CallResourceResponse) error {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(answer.Status)
		_, err := w.Write(answer.Body)
		return err
	}))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
}

type sender func(*backend.CallResourceResponse) error

func (s sender) Send(answer *backend.CallResourceResponse) error { return s(answer) }
